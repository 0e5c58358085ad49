"""JSON lines: errors name the file and the line, and files are written atomically.

Objects with a repeated key are recognised; parsers silently keep only the last of its values.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fieldcraft.records.files import dump_finite_json, write_text
from fieldcraft.records.reading import DamagedFileError, raise_read_errors, require_file

T = TypeVar("T")
_BYTE_ORDER_MARK = "\ufeff"  # written by Windows editors at the start of a file


class InvalidLine(NamedTuple):
    """A line that is not a JSON object, with the reason as a predicate, as in "is not JSON"."""

    reason: str


def iter_json_lines(
    path: Path,
) -> Iterator[tuple[int, dict[str, Any] | DuplicateKeyObject | InvalidLine]]:
    """Yield (line number from 1, object) for each non-blank line; `.gz` is decompressed. If a key
    is repeated anywhere in a line, the innermost object with a repeated key is yielded.

    Raises:
        UserError: the file is missing or damaged, is not UTF-8 text, or ends within a line.
    """
    require_file(path, "give an existing file")
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
    """Yield the objects. Raises UserError also for lines that are not objects or repeat a key."""
    for number, found in iter_json_lines(path):
        if isinstance(found, InvalidLine):
            raise DamagedFileError(f"{path}, line {number} {found.reason}")
        yield number, _require_unique_keys(found, f"{path}, line {number}")


def write_json_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one object per line, atomically. Raises UserError as `dump_finite_json` does."""
    write_text(
        path, (f"{dump_finite_json(path, record, ensure_ascii=False)}\n" for record in records)
    )


def read_journal(path: Path, parse: Callable[[bytes, str], T], purpose: str) -> list[T]:
    """Return the entries of a journal, to which `append_text` adds a line for each finished job. An
    incomplete last line is ignored: another process may be writing it, or a crash cut it short.

    `parse` receives a line and its name for errors. Raises UserError for a damaged line, with the
    advice to remove it, which ends with `purpose`: "to repeat the attempt".
    """
    # The other lines were expensive, so only one line is removed.
    advice = f"keep a copy of {path.name}, then remove the line, {purpose}"
    text = path.read_bytes() if path.exists() else b""
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    entries = []
    for number, line in enumerate(lines, start=1):
        location = f"{path}, line {number}"
        with raise_read_errors(location, advice):
            entries.append(parse(line, location))
    return entries


def parse_object(line: bytes, where: str) -> dict[str, Any]:
    """Return the object of a line. Raises UserError, which names `where`, for anything else."""
    return _require_unique_keys(_parse_line(line, where, DuplicateKeyDecoder()), where)


def _parse_line(
    line: bytes, where: str, decoder: DuplicateKeyDecoder
) -> dict[str, Any] | DuplicateKeyObject:
    decoder.duplicates.clear()
    with raise_read_errors(where, "correct the line"):
        record = decoder.decode(line.decode(errors="surrogatepass").removeprefix(_BYTE_ORDER_MARK))
    if not isinstance(record, dict):
        raise DamagedFileError(f"{where} is not a JSON object; write one {{...}} per line.")
    return decoder.duplicates[0] if decoder.duplicates else record


def _require_unique_keys(found: dict[str, Any] | DuplicateKeyObject, where: str) -> dict[str, Any]:
    if isinstance(found, DuplicateKeyObject):
        raise DamagedFileError(f"{where} has the key '{found.key}' twice; keep one of them.")
    return found


# -- repeated keys -----------------------------------------------------------------------------


class DuplicateKeyObject(dict[str, Any]):
    """JSON object in which `key` occurs twice, with the last of its values."""

    key: str


class DuplicateKeyDecoder:
    """Decoder of JSON like `json.loads` that also records objects with a repeated key.

    For most files, a reused decoder takes no longer than `json.loads` on each line as bytes, which
    detects the encoding of each line.
    """

    def __init__(self) -> None:
        self.duplicates: list[
            DuplicateKeyObject
        ] = []  # from all decoded values, inner objects first
        self.decode = json.JSONDecoder(object_pairs_hook=self._build_object).decode

    def _build_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        return self._record_duplicate(pairs)

    def _record_duplicate(self, pairs: list[tuple[str, Any]]) -> DuplicateKeyObject:
        found = DuplicateKeyObject(pairs)
        names = [name for name, _ in pairs]
        found.key = next(name for name in names if names.count(name) > 1)
        self.duplicates.append(found)
        return found


def find_duplicates(value: Any) -> list[DuplicateKeyObject]:
    """Return the objects with a repeated key in a value, including the value itself."""
    if isinstance(value, list):
        return [found for inner in value for found in find_duplicates(inner)]
    if not isinstance(value, dict):
        return []
    own = [value] if isinstance(value, DuplicateKeyObject) else []
    return [found for inner in value.values() for found in find_duplicates(inner)] + own
