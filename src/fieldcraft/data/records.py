"""Records of files that others wrote: JSON lines and arrays, parquet, CSV, TSV, XLSX, and folders.

A .json file may also be one object around its records: {"data": [...]}, as SQuAD and TriviaQA have
it, or columns as pandas writes them, {"query": {"0": ...}, "answers": {"0": ...}}.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet

from fieldcraft.data.cells import Misfit, rows_of_cells
from fieldcraft.data.foreign import open_packed, refuse_foreign, refuse_other_encoding
from fieldcraft.data.formats.tables import folder_records, is_folder
from fieldcraft.data.sheets import is_workbook, rows_of_sheet
from fieldcraft.data.written import opened
from fieldcraft.hub.rows import local_file
from fieldcraft.records.files import finite_json, write_text
from fieldcraft.records.jsonl import NoObject, json_lines
from fieldcraft.records.reading import reading, require_file
from fieldcraft.records.repeated_keys import ObjectDecoder, RepeatedKey, repeated_in
from fieldcraft.types import UserError

Record = dict[str, Any]


class Malformed(Exception):
    """Reason to leave a record out, as in "3 with REASON"; `sentence` may say more, with a
    remedy."""

    def __init__(self, reason: str, sentence: str = "") -> None:
        super().__init__(reason)
        self.sentence = sentence or f"it holds {reason}: correct or remove the record."


def hash_of(question: str) -> str:
    """Return the id of a question that has none of its own."""
    return hashlib.sha1(question.strip().encode(errors="replace")).hexdigest()[:16]


def records(path: Path) -> Iterator[tuple[str, Record | Malformed]]:
    """Yield (where it stands, object) for each record of a file in any of the formats. Lists and
    objects that a table holds as text are there as what they are. In place of a record that cannot
    be told from what is written, with a key that comes twice or with other cells than the header
    has, there is the reason to leave it out."""
    for where, found in _as_written(path):
        yield where, found if isinstance(found, Malformed) else opened(found)


def readable_records(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield the records without those that are to be left out: they show what a file holds."""
    return ((where, found) for where, found in records(path) if not isinstance(found, Malformed))


def understood(found: Record | Malformed) -> Record:
    """Return a record. Raises the Malformed that stands in place of one."""
    if isinstance(found, Malformed):
        raise found
    return found


def _as_written(named: Path) -> Iterator[tuple[str, Record | Malformed]]:
    path = local_file(named)
    if is_folder(path):
        for number, row in enumerate(folder_records(path), start=1):
            yield f"{path}, row {number}", row
        return
    require_file(path, "give a .jsonl, .json, .parquet, .csv, .tsv or .xlsx file")
    if is_workbook(path):
        for number, cells in rows_of_sheet(path):
            yield f"{path}, row {number}", cells
        return
    refuse_foreign(path)
    kind = kind_of(path)
    if kind in _TABLES:
        yield from _rows(path)
    elif kind == ".json" and _is_whole(path):
        for number, record in enumerate(_elements(path), start=1):
            yield f"{path}, element {number}", record
    else:
        for number, found in json_lines(path):
            yield f"{path}, line {number}", of_line(found)


def of_line(found: Record | RepeatedKey | NoObject) -> Record | Malformed:
    """Return the object of a line of JSON, or the reason to leave it out."""
    match found:
        case NoObject(fault):
            return Malformed("a line that is no object of JSON", f"the line {fault}")
        case RepeatedKey():
            return key_twice(found)
    return found


def kind_of(path: Path) -> str:
    """Return the ending that says how a file is written, such as .tsv, whether it is packed or
    not."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


# -- tables ------------------------------------------------------------------------------------

_TABLES = (".parquet", ".csv", ".tsv")
_ROWS = 10_000  # that become objects at once


def _rows(path: Path) -> Iterator[tuple[str, Record | Malformed]]:
    """Yield the rows of a table, of which a part at a time becomes objects of Python."""
    kind = kind_of(path)
    with reading(path, f"give a whole {kind[1:]} file"):
        if kind != ".parquet":
            refuse_other_encoding(path)
        rows: Iterator[Record | Misfit]
        rows = _stored_rows(path) if kind == ".parquet" else rows_of_cells(path, kind)
        for number, row in enumerate(rows, start=1):
            if isinstance(row, Misfit):
                # A mark that is not written twice may have made one row of several.
                yield from ((f"{path}, line {line}", _misfit(row)) for line in row.lines)
            else:
                yield f"{path}, row {number}", row


def _stored_rows(path: Path) -> Iterator[Record]:
    for batch in pyarrow.parquet.read_table(path).to_batches(max_chunksize=_ROWS):
        yield from batch.to_pylist()


def _misfit(row: Misfit) -> Malformed:
    """Return the reason to leave a row out. Nobody can tell which of its cells are missing, so the
    last ones are not taken for empty."""
    more = "more" if row.cells > row.columns else "fewer"
    return Malformed(
        f"{more} cells than its header has columns",
        f"its row has {row.cells} cells and the header {row.columns} columns: write an empty cell"
        " for each that is missing, and a cell with a separator or a line break in quotation"
        " marks.",
    )


# -- JSON --------------------------------------------------------------------------------------

_WRAPPERS = ("data", "Data")  # of SQuAD and TriviaQA, beside a version
_LISTS = (
    *("train", "validation", "valid", "val", "dev", "test"),
    *("questions", "examples", "records", "rows", "items", "samples", "instances"),
)
_OF_A_RECORD = {"question", "Question", "problem", "query", "prompt", "messages", "conversations"}


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


def _elements(path: Path) -> Iterator[Record | Malformed]:
    """Yield the records of a JSON value: an array, or what one object wraps."""
    decoder = ObjectDecoder()
    with reading(path, "fix the file"), open_packed(path) as file:
        value = decoder.decode(file.read().decode("utf-8-sig"))
    elements = _wrapped(value, path) if isinstance(value, dict) else value
    if not isinstance(elements, list):
        raise UserError(f"{path} is no list of records; give an array of objects, or one a line.")
    inside = {id(found) for found in repeated_in(elements)} if decoder.repeated else ()
    for found in decoder.repeated:
        if id(found) not in inside:
            raise UserError(
                f"{path} has the key '{found.key}' twice in an object around its records; keep one"
                " of them."
            )
    for element in elements:
        twice = repeated_in(element) if inside else []
        if _is_dialogue(element):
            element = {"conversations": element}
        if isinstance(element, dict):
            yield key_twice(twice[0]) if twice else element
        else:
            yield Malformed(
                "an element that is no object", "it is not an object; fix or remove it."
            )


def _is_dialogue(element: Any) -> bool:
    """Tell whether an element is a list of turns without a record around it."""
    turns = element if isinstance(element, list) else []
    return bool(turns) and all(isinstance(turn, dict) and "from" in turn for turn in turns)


def key_twice(found: RepeatedKey) -> Malformed:
    """Return the reason to leave out a record that holds an object with a key that comes twice."""
    return Malformed(
        f"the key '{found.key}' twice",
        f"it has the key '{found.key}' twice: keep one of them, or remove the record.",
    )


def _wrapped(value: Record, path: Path) -> list[Any]:
    for key in _WRAPPERS:
        if isinstance(inside := value.get(key), list):
            return inside
    if lists := _lists_of_records(value):
        if len(lists) > 1:
            raise UserError(
                f"{path} holds {len(lists)} lists of records, {' and '.join(map(repr, lists))}:"
                " write the list that is meant into a file of its own, and give that."
            )
        return list(value[lists[0]])
    columns = list(value.values())
    if len(columns) > 1 and all(isinstance(column, dict) for column in columns):
        numbers = columns[0].keys()
        if numbers and all(column.keys() == numbers for column in columns):
            return [{key: column[n] for key, column in value.items()} for n in numbers]
    return [value]


def _lists_of_records(value: Record) -> list[str]:
    """Return the keys of an object under which lists of records stand, as the splits of a data
    set."""
    if _OF_A_RECORD & value.keys():
        return []
    found = {key: value[key] for key in _LISTS if isinstance(value.get(key), list)}
    return [key for key, rows in found.items() if rows and all(isinstance(r, dict) for r in rows)]


def first(record: Record, keys: Sequence[str]) -> Any:
    """Return the value of the first key that the record fills, None without any."""
    return next((record[key] for key in keys if record.get(key) not in (None, "", [])), None)


def write_array(path: Path, found: Sequence[Record]) -> None:
    """Write a JSON array, whole or not at all."""
    write_text(path, [finite_json(path, found, ensure_ascii=False, indent=1) + "\n"])
