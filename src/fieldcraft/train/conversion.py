"""Entry point of model conversion: `python -m fieldcraft.train.conversion KIND TARGET SOURCES`.

It exits with 0 after writing TARGET, or with 2 and an error message as the last line on stderr.
After any other failure, TARGET does not exist. `hub/model_conversion.py` starts it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from fieldcraft.hub.model_conversion import hash_file
from fieldcraft.records.files import atomic_folder, write_json
from fieldcraft.train.gguf_import import write_from_gguf
from fieldcraft.train.lora import write_merged_model
from fieldcraft.types import UserError

ORIGIN_FILE = "origin.json"  # for users: sources of the folder
_WRITERS: Mapping[str, Callable[..., None]] = {
    "gguf": write_from_gguf,
    "adapter": write_merged_model,
}


def main(kind: str, target: str, *sources: str) -> None:
    """Write a complete model to a new folder."""
    paths = [Path(source) for source in sources]
    with atomic_folder(Path(target)) as draft:
        _WRITERS[kind](draft, *paths)
        write_json(
            draft / ORIGIN_FILE,
            {"kind": kind, "sources": [_describe_origin(path) for path in paths]},
        )


def _describe_origin(path: Path) -> dict[str, str]:
    digest = {"sha256": hash_file(path)} if path.is_file() else {}
    return {"path": str(path.absolute()), **digest}


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
