"""Records of files that others wrote: JSON lines, JSON arrays, parquet, CSV, and folders."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.parquet

from fieldcraft.data.formats.tables import folder_records, is_folder
from fieldcraft.data.written import opened
from fieldcraft.records.files import write_text
from fieldcraft.records.jsonl import read_json_lines
from fieldcraft.records.reading import reading, require_file
from fieldcraft.types import UserError

Record = dict[str, Any]


class Malformed(Exception):
    """Why a record is left out."""


MAX_LEFT_OUT = 0.1  # of the records of a file, without consent


def refuse_much_left_out(
    path: Path, total: int, reasons: Counter[str], most: float, first: str
) -> None:
    """Raises UserError if more than the share `most` of the records of a file are left out: then
    most likely the file is not understood. `first` says of one record what is wrong."""
    why = ", ".join(f"{count} with {reason}" for reason, count in reasons.most_common())
    if reasons.total() == total > 0:
        raise UserError(
            f"no demonstration of {path} can be read ({why}; such as {first}): correct the file, or"
            " give another one."
        )
    if reasons.total() > most * total:
        share = math.ceil(100 * reasons.total() / total) / 100
        raise UserError(
            f"{reasons.total()} of the {total} records of {path} would be left out ({why}; such as"
            f" {first}): correct the file, or agree by max_left_out={share:g}."
        )


def hash_of(question: str) -> str:
    """The id of a question that has none of its own."""
    return hashlib.sha1(question.strip().encode(errors="replace")).hexdigest()[:16]


def records(path: Path) -> Iterator[tuple[str, Record]]:
    """(where it stands, object) for each record of a file in any of the formats. Lists and objects
    that a table holds as text are there as what they are."""
    for where, record in _as_written(path):
        yield where, opened(record)


def _as_written(path: Path) -> Iterator[tuple[str, Record]]:
    if is_folder(path):
        for number, row in enumerate(folder_records(path), start=1):
            yield f"{path}, row {number}", row
        return
    require_file(path, "give a .jsonl, .json, .parquet or .csv file")
    if path.suffix in (".parquet", ".csv"):
        for number, row in enumerate(_rows(path), start=1):
            yield f"{path}, row {number}", row
    elif _is_array(path):
        for number, record in enumerate(_array(path), start=1):
            if not isinstance(record, dict):
                raise UserError(f"{path}, element {number} is not an object; fix or remove it.")
            yield f"{path}, element {number}", record
    else:
        for number, record in read_json_lines(path):
            yield f"{path}, line {number}", record


def _rows(path: Path) -> list[Record]:
    """Of a table."""
    with reading(path, f"give a whole {path.suffix[1:]} file"):
        table = _csv(path) if path.suffix == ".csv" else pyarrow.parquet.read_table(path)
        rows: list[Record] = table.to_pylist()
    return rows


def _csv(path: Path) -> pyarrow.Table:
    """A table in which every cell is the text that stands there. A CSV has no types: a guess would
    make 7 of the answer 007, and a date of 2009-01-03."""
    cells = pyarrow.csv.ParseOptions(newlines_in_values=True)
    with pyarrow.csv.open_csv(path, parse_options=cells) as begin:
        names = begin.schema.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two columns are called '{twice[0]}'")
    texts = dict.fromkeys(names, pyarrow.string())
    convert = pyarrow.csv.ConvertOptions(column_types=texts, strings_can_be_null=False)
    return pyarrow.csv.read_csv(path, parse_options=cells, convert_options=convert)


def _is_array(path: Path) -> bool:
    """Whether a file is to be read as a whole. An object that takes several lines is, too: it is
    no JSON lines."""
    if path.suffix != ".json":
        return False
    with path.open("rb") as file:
        begin = file.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n")
    return begin.startswith(b"[") or begin.partition(b"\n")[0].strip() == b"{"


def _array(path: Path) -> list[Any]:
    with reading(path, "fix the file"):
        array = json.loads(path.read_text("utf-8-sig"))
    if not isinstance(array, list):
        raise UserError(f"{path} is one JSON object; give an array of objects, or one a line.")
    return array


def first(record: Record, keys: Sequence[str]) -> Any:
    """The value of the first key that the record fills, None without any."""
    return next((record[key] for key in keys if record.get(key) not in (None, "", [])), None)


def write_array(path: Path, found: Sequence[Record]) -> None:
    """Write a JSON array, whole or not at all."""
    write_text(path, [json.dumps(found, ensure_ascii=False, indent=1) + "\n"])
