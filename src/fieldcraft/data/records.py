"""Records of files that others wrote: JSON lines, JSON arrays, parquet, CSV, TSV, and folders.

A .json file may also be one object around its records: {"data": [...]}, as SQuAD and TriviaQA have
it, or columns as pandas writes them, {"query": {"0": ...}, "answers": {"0": ...}}.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.parquet

from fieldcraft.data.foreign import open_packed, refuse_foreign, refuse_other_encoding
from fieldcraft.data.formats.tables import folder_records, is_folder
from fieldcraft.data.written import opened
from fieldcraft.records.files import write_text
from fieldcraft.records.jsonl import read_json_lines
from fieldcraft.records.reading import reading, require_file
from fieldcraft.types import UserError

Record = dict[str, Any]


class Malformed(Exception):
    """Why a record is left out, as in "3 with REASON"; `sentence` may say more, with a remedy."""

    def __init__(self, reason: str, sentence: str = "") -> None:
        super().__init__(reason)
        self.sentence = sentence or f"it holds {reason}: correct or remove the record."


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
    require_file(path, "give a .jsonl, .json, .parquet, .csv or .tsv file")
    refuse_foreign(path)
    kind = kind_of(path)
    if kind in _TABLES:
        for number, row in enumerate(_rows(path), start=1):
            yield f"{path}, row {number}", row
    elif kind == ".json" and _is_whole(path):
        for number, record in enumerate(_elements(path), start=1):
            if not isinstance(record, dict):
                raise UserError(f"{path}, element {number} is not an object; fix or remove it.")
            yield f"{path}, element {number}", record
    else:
        for number, record in read_json_lines(path):
            yield f"{path}, line {number}", record


def kind_of(path: Path) -> str:
    """The ending that says how a file is written, such as .tsv, whether it is packed or not."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


# -- tables ------------------------------------------------------------------------------------

_TABLES = (".parquet", ".csv", ".tsv")
# Bytes of a file of cells that are read at once: a cell, such as the tests of a program, must fit.
_LEAST_BLOCK, _MOST_BLOCK = 2**24, 2**30
_ROWS = 10_000  # that become objects at once


def _table(separator: str) -> re.Pattern[str]:
    """A whole table in which each cell that begins with a quotation mark ends with one, too."""
    cell = rf'(?:"(?:[^"]|"")*+"|(?!")[^{separator}\r\n]*+)'
    return re.compile(rf"(?:{cell}(?:{separator}|\r\n?|\n|\Z))*+")


_QUOTED, _QUOTED_CSV = _table("\t"), _table(",")


def _rows(path: Path) -> Iterator[Record]:
    """The rows of a table, of which a part at a time becomes objects of Python."""
    kind = kind_of(path)
    with reading(path, f"give a whole {kind[1:]} file"):
        if kind != ".parquet":
            refuse_other_encoding(path)
        table = pyarrow.parquet.read_table(path) if kind == ".parquet" else _cells(path, kind)
    for batch in table.to_batches(max_chunksize=_ROWS):
        yield from batch.to_pylist()


def _cells(path: Path, kind: str) -> pyarrow.Table:
    """A table in which every cell is the text that stands there. A CSV has no types: a guess would
    make 7 of the answer 007, and a date of 2009-01-03."""
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    size = min(max(path.stat().st_size, _LEAST_BLOCK), _MOST_BLOCK)
    read = pyarrow.csv.ReadOptions(block_size=size)
    if kind == ".csv":
        _refuse_broken_quotes(path)
    if kind == ".tsv":
        parse.delimiter = "\t"
        if _has_no_header(path):
            read.column_names = ["id", "text"]
        if read.column_names or _quotes_nothing(path):
            parse = pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False)
    with pyarrow.csv.open_csv(path, read_options=read, parse_options=parse) as begin:
        names = begin.schema.names
    other = next((sign for sign in ";\t|" if sign in names[0]), None)
    if kind == ".csv" and len(names) == 1 and other is not None:
        raise ValueError(f"its columns are separated by {other!r} and not by commas")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two columns are called '{twice[0]}'")
    texts = dict.fromkeys(names, pyarrow.string())
    convert = pyarrow.csv.ConvertOptions(column_types=texts, strings_can_be_null=False)
    table = pyarrow.csv.read_csv(path, read, parse, convert)
    return table.rename_columns([name.strip() for name in names])


def _refuse_broken_quotes(path: Path) -> None:
    """Raises ValueError for a CSV in which text follows the quotation mark that ends a cell, as it
    does where marks are written as \\". Read on, such a cell would hold other signs than were
    meant."""
    with open_packed(path) as file:
        text = file.read().decode("utf-8-sig")
    if not _QUOTED_CSV.fullmatch(text):
        raise ValueError("a quotation mark in a cell is not written twice")


def _has_no_header(path: Path) -> bool:
    """Tell whether a TSV is MS MARCO's, a number and a text a line, in which nothing is quoted."""
    with open_packed(path) as file:
        first_cell, *others = file.readline().decode("utf-8-sig").rstrip("\r\n").split("\t")
    return len(others) == 1 and first_cell.isdecimal()


def _quotes_nothing(path: Path) -> bool:
    """Tell whether the quotation marks of a TSV are those of its texts: something follows the mark
    that should end a cell, and yet each line has a cell for each column. Read as quoted, a cell
    that begins with a mark would swallow the records behind it."""
    with open_packed(path) as file:
        text = file.read().decode("utf-8-sig")
    columns = {line.count("\t") for line in text.split("\n") if line.strip("\r")}
    return len(columns) == 1 and _QUOTED.fullmatch(text) is None


# -- JSON --------------------------------------------------------------------------------------

_WRAPPERS = ("data", "Data")  # of SQuAD and TriviaQA, beside a version


def _is_whole(path: Path) -> bool:
    """Tell whether a .json file is one value, and not a line for each record."""
    with open_packed(path) as file:
        line = file.readline().lstrip(b"\xef\xbb\xbf")
        while line and not line.strip():
            line = file.readline()
        more = any(other.strip() for other in file)
    if line.lstrip().startswith(b"[") or not more:
        return True
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _elements(path: Path) -> list[Any]:
    """The records of a JSON value: an array, or what one object wraps."""
    with reading(path, "fix the file"), open_packed(path) as file:
        value = json.loads(file.read().decode("utf-8-sig"))
    if isinstance(value, dict):
        return _wrapped(value, path)
    if not isinstance(value, list):
        raise UserError(f"{path} is no list of records; give an array of objects, or one a line.")
    return value


def _wrapped(value: Record, path: Path) -> list[Any]:
    for key in _WRAPPERS:
        if isinstance(inside := value.get(key), list):
            return inside
    columns = list(value.values())
    if len(columns) > 1 and all(isinstance(column, dict) for column in columns):
        numbers = columns[0].keys()
        if numbers and all(column.keys() == numbers for column in columns):
            return [{key: column[n] for key, column in value.items()} for n in numbers]
    return [value]


def first(record: Record, keys: Sequence[str]) -> Any:
    """The value of the first key that the record fills, None without any."""
    return next((record[key] for key in keys if record.get(key) not in (None, "", [])), None)


def write_array(path: Path, found: Sequence[Record]) -> None:
    """Write a JSON array, whole or not at all."""
    write_text(path, [json.dumps(found, ensure_ascii=False, indent=1) + "\n"])
