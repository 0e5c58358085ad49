"""The commands `fieldcraft convert` and `fieldcraft bench`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from fieldcraft.cli.app import MaxLeftOutOption, app, require_empty_folder
from fieldcraft.records.files import require_writable
from fieldcraft.terminal.console import print_line
from fieldcraft.types import UserError


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
    from fieldcraft.data.formats import convert as formats

    if not out.suffix:
        require_empty_folder(out)
    require_writable(out)
    written, reasons = formats.convert(source, to, out, max_left_out)
    for reason, count in reasons.most_common():
        print_line(f"{count} left out: {reason}")
    print_line(f"{out}: {written} written")


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],  # `bench NAME --help` is for the script
    }
)
def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of a script in bench/, for example engine.")],
) -> None:
    """Run a script of bench/, with its options after its name; only from a checkout."""
    if name == "--help":
        print_line(context.get_help())
        return
    folder = Path(__file__).parents[3] / "bench"
    scripts = {script.stem: script for script in sorted(folder.glob("[!_]*.py"))}
    if not scripts:
        raise UserError("bench/ is not part of the installed package: run it from a checkout.")
    if name not in scripts:
        raise UserError(f"bench/ has no script '{name}': use one of {', '.join(scripts)}.")
    print_line(f"Running bench/{name}.py ...", file=sys.stderr)
    sys.argv = [str(scripts[name]), *context.args]
    sys.path.insert(0, str(folder))  # scripts share modules, as when Python runs them
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except ModuleNotFoundError as error:
        raise UserError(
            f"bench/{name}.py needs the package '{error.name}': install the requirements"
            " in the first lines of the script."
        ) from error
