"""JSON lines: errors name the file and the line; a file is written whole or not at all."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fieldcraft.records.files import finite_json, write_text
from fieldcraft.records.reading import Damaged, reading, require_file
from fieldcraft.records.repeated_keys import ObjectDecoder, RepeatedKey

_BYTE_ORDER = "\ufeff"  # a mark with which editors of Windows begin a file


class NoObject(NamedTuple):
    """A line that is no object of JSON, and what it is, as in "is not JSON"."""

    fault: str


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | RepeatedKey | NoObject]]:
    """Yield (line number from 1, object) for each line that is not blank; `.gz` is unpacked. Where
    a key comes twice, anywhere in a line, the object is the one in which it does.

    Raises:
        UserError: the file is missing or damaged, is no text in UTF-8, or ends within a line.
    """
    require_file(path, "give a file of JSON lines")
    opener = gzip.open if path.suffix == ".gz" else open
    decoder = ObjectDecoder()
    with reading(path, "fetch or make it again"), opener(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                yield number, _parsed(line, where, decoder)
            except Damaged as error:
                if not line.endswith(b"\n") or isinstance(error.__cause__, UnicodeDecodeError):
                    raise
                yield number, NoObject(str(error).removeprefix(where).strip())


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the same. Raises UserError for a line that is no object or has a key twice, too."""
    for number, found in json_lines(path):
        if isinstance(found, NoObject):
            raise Damaged(f"{path}, line {number} {found.fault}")
        yield number, _with_each_key_once(found, f"{path}, line {number}")


def write_json_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one object per line, whole or not at all. Raises UserError as `finite_json` does."""
    write_text(path, (f"{finite_json(path, one, ensure_ascii=False)}\n" for one in records))


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a journal, none where there is no file. One that a kill cut short is
    removed from it."""
    text = path.read_bytes() if path.exists() else b""
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        os.truncate(path, len(whole))
    return whole.splitlines()


def parse_object(line: bytes, where: str) -> dict[str, Any]:
    """Return the object of a line. Raises UserError, which says `where`, for anything else."""
    return _with_each_key_once(_parsed(line, where, ObjectDecoder()), where)


def _parsed(line: bytes, where: str, decoder: ObjectDecoder) -> dict[str, Any] | RepeatedKey:
    decoder.repeated.clear()
    with reading(where, "correct the line"):
        record = decoder.decode(line.decode(errors="surrogatepass").removeprefix(_BYTE_ORDER))
    if not isinstance(record, dict):
        raise Damaged(f"{where} is not a JSON object; write one {{...}} a line.")
    return decoder.repeated[0] if decoder.repeated else record


def _with_each_key_once(found: dict[str, Any] | RepeatedKey, where: str) -> dict[str, Any]:
    if isinstance(found, RepeatedKey):
        raise Damaged(f"{where} has the key '{found.key}' twice; keep one of them.")
    return found
