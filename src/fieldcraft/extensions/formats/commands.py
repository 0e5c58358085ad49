"""The command `fieldcraft convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fieldcraft.cli.app import (
    MaxLeftOutOption,
    advise_options,
    app,
    require_empty_folder,
    require_new_file,
)
from fieldcraft.records.files import require_writable
from fieldcraft.terminal.console import print_line

_USE_ADVICE = {
    "tasks": "convert it with --to questions or --to verl",
    "pairs": "a recipe reads it as pairs=FILE, without conversion",
    "corpus": "a recipe reads passages as corpus=FILE, without conversion",
    "relevance": "give questions with their answers",
}


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A file, or a folder of datasets.")],
    to: Annotated[
        str,
        typer.Option(
            help="Format to write: openai, trl, trl-prompt, sharegpt, afm, autocoa, steps,"
            " questions or verl."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="File (.jsonl, .json, .parquet) or folder to write.")
    ],
    max_left_out: MaxLeftOutOption = 0.1,
) -> None:
    """Convert demonstrations or questions to another format."""
    from fieldcraft.extensions.formats import convert as formats

    if out.is_file():
        require_new_file(out)
    if not out.suffix:
        require_empty_folder(out)
    require_writable(out)
    with advise_options(**_USE_ADVICE):
        written, reasons = formats.convert(source, to, out, max_left_out)
    for reason, count in reasons.most_common():
        print_line(f"{count} left out: {reason}")
    print_line(f"{out}: {written} written")
