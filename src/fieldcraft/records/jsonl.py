"""JSON lines: errors name the file and the line; a file is written whole or not at all."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fieldcraft.records.duplicate_keys import DuplicateKeyDecoder, DuplicateKeyObject
from fieldcraft.records.files import dump_finite_json, write_text
from fieldcraft.records.reading import DamagedFileError, raise_read_errors, require_file

_BYTE_ORDER_MARK = "\ufeff"  # a mark with which editors of Windows begin a file


class InvalidLine(NamedTuple):
    """A line that is no object of JSON, and what it is, as in "is not JSON"."""

    reason: str


def iter_json_lines(
    path: Path,
) -> Iterator[tuple[int, dict[str, Any] | DuplicateKeyObject | InvalidLine]]:
    """Yield (line number from 1, object) for each line that is not blank; `.gz` is unpacked. Where
    a key comes twice, anywhere in a line, the object is the one in which it does.

    Raises:
        UserError: the file is missing or damaged, is not text in UTF-8, or ends within a line.
    """
    require_file(path, "give a file of JSON lines")
    opener = gzip.open if path.suffix == ".gz" else open
    decoder = DuplicateKeyDecoder()
    with raise_read_errors(path, "fetch or make it again"), opener(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                yield number, _parse_line(line, where, decoder)
            except DamagedFileError as error:
                if not line.endswith(b"\n") or isinstance(error.__cause__, UnicodeDecodeError):
                    raise
                yield number, InvalidLine(str(error).removeprefix(where).strip())


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the same. Raises UserError for a line that is no object or has a key twice, too."""
    for number, found in iter_json_lines(path):
        if isinstance(found, InvalidLine):
            raise DamagedFileError(f"{path}, line {number} {found.reason}")
        yield number, _require_unique_keys(found, f"{path}, line {number}")


def write_json_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one object per line, whole or not at all. Raises UserError as `dump_finite_json`
    does."""
    write_text(
        path, (f"{dump_finite_json(path, record, ensure_ascii=False)}\n" for record in records)
    )


def read_complete_lines(path: Path) -> list[bytes]:
    """Return the lines of a journal, none where there is no file. One that a kill cut short is
    removed from it."""
    text = path.read_bytes() if path.exists() else b""
    complete = text[: text.rfind(b"\n") + 1]
    if complete != text:
        os.truncate(path, len(complete))
    return complete.splitlines()


def parse_object(line: bytes, where: str) -> dict[str, Any]:
    """Return the object of a line. Raises UserError, which says `where`, for anything else."""
    return _require_unique_keys(_parse_line(line, where, DuplicateKeyDecoder()), where)


def _parse_line(
    line: bytes, where: str, decoder: DuplicateKeyDecoder
) -> dict[str, Any] | DuplicateKeyObject:
    decoder.duplicates.clear()
    with raise_read_errors(where, "correct the line"):
        record = decoder.decode(line.decode(errors="surrogatepass").removeprefix(_BYTE_ORDER_MARK))
    if not isinstance(record, dict):
        raise DamagedFileError(f"{where} is not a JSON object; write one {{...}} a line.")
    return decoder.duplicates[0] if decoder.duplicates else record


def _require_unique_keys(found: dict[str, Any] | DuplicateKeyObject, where: str) -> dict[str, Any]:
    if isinstance(found, DuplicateKeyObject):
        raise DamagedFileError(f"{where} has the key '{found.key}' twice; keep one of them.")
    return found
