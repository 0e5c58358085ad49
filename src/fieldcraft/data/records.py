"""Records of files that others wrote: JSON lines, JSON arrays, parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from fieldcraft.records.files import write_text
from fieldcraft.records.jsonl import read_json_lines
from fieldcraft.types import UserError

Record = dict[str, Any]


def records(path: Path) -> Iterator[tuple[str, Record]]:
    """(where it stands, object) for each record of a file in any of the formats."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a .jsonl, .json or .parquet file.")
    if path.suffix == ".parquet":
        for number, row in enumerate(_parquet_rows(path), start=1):
            yield f"{path}, row {number}", row
    elif _is_array(path):
        for number, record in enumerate(_array(path), start=1):
            if not isinstance(record, dict):
                raise UserError(f"{path}, element {number} is not an object; fix or remove it.")
            yield f"{path}, element {number}", record
    else:
        for number, record in read_json_lines(path):
            yield f"{path}, line {number}", record


def _parquet_rows(path: Path) -> list[Record]:
    try:
        rows: list[Record] = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path} is not a parquet file ({error}); give another.") from error
    return rows


def _is_array(path: Path) -> bool:
    if path.suffix != ".json":
        return False
    with path.open("rb") as file:
        return file.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def _array(path: Path) -> list[Any]:
    try:
        array: list[Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); fix the file.") from error
    return array


def first(record: Record, keys: Sequence[str]) -> Any:
    """The value of the first key that the record fills, None without any."""
    return next((record[key] for key in keys if record.get(key) not in (None, "", [])), None)


def write_array(path: Path, found: Sequence[Record]) -> None:
    """Write a JSON array, whole or not at all."""
    write_text(path, [json.dumps(found, ensure_ascii=False, indent=1) + "\n"])
