"""Files of the user that each program finds in its working folder."""

from __future__ import annotations

from pathlib import Path

from fieldcraft.records.reading import raise_read_errors
from fieldcraft.types import UserError

_MAX_INPUT_BYTES = 32 * 2**20  # they are sent to every new working folder


def read_input_files(folder: Path, user: str) -> dict[str, tuple[bytes, int]]:
    """Read all files below the setting `files` of a `user`: name -> (content, mode).

    Raises UserError if the folder cannot be read, or is larger than _MAX_INPUT_BYTES.
    """
    if not folder.is_dir():
        raise UserError(f"'{folder}' is not a folder: correct 'files' of {user}.")
    found: dict[str, tuple[bytes, int]] = {}
    with raise_read_errors(str(folder), "give a folder whose files can be read"):
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        if sum(path.stat().st_size for path in paths) > _MAX_INPUT_BYTES:
            raise UserError(
                f"'{folder}' has more than {_MAX_INPUT_BYTES // 2**20} MiB: name a smaller folder"
                f" in 'files' of {user}, or put large files into the image of a machine."
            )
        for path in paths:
            name = path.relative_to(folder).as_posix()
            found[name] = path.read_bytes(), path.stat().st_mode & 0o755
    return found
