"""Records of published files: JSON lines and arrays, parquet, CSV, TSV, XLSX, and folders.

A .json file may also be a single object that wraps its records: {"data": [...]}, as in SQuAD and
TriviaQA, or columns as pandas writes them, {"query": {"0": ...}, "answers": {"0": ...}}.

Records that are left out are counted by reason; too many of them are an error.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow.parquet

from fieldcraft.config.hub_names import DATASET_FORM
from fieldcraft.data.literals import parse_text_values
from fieldcraft.data.record_files import is_dataset_folder, read_dataset_folder
from fieldcraft.data.table_files import (
    MismatchedRow,
    is_workbook,
    open_maybe_gzip,
    read_csv_rows,
    read_sheet_rows,
    require_text_file,
    require_utf8,
)
from fieldcraft.hub.dataset_files import resolve_data_file
from fieldcraft.records.files import find_nonfinite
from fieldcraft.records.jsonl import (
    DuplicateKeyDecoder,
    DuplicateKeyObject,
    InvalidLine,
    find_duplicates,
    iter_json_lines,
)
from fieldcraft.records.reading import RecipeKeyError, raise_read_errors, require_file
from fieldcraft.types import UserError

Record = dict[str, Any]
T = TypeVar("T")


class RecordError(Exception):
    """Reason to leave a record out, a noun phrase as in "3 with REASON"; `message` may add
    details and a remedy."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(reason)
        self.message = message or f"it holds {reason}: correct or remove the record."


def make_question_id(question: str) -> str:
    """Return an id for a question that has no id of its own."""
    return hashlib.sha1(question.strip().encode(errors="replace")).hexdigest()[:16]


def read_records(path: Path) -> Iterator[tuple[str, Record | RecordError]]:
    """Yield (location, object) for each record of a file in any of the formats. Lists and objects
    that a table holds as text are parsed. An ambiguous record (with a repeated key, or with more or
    fewer cells than the header) is replaced by the reason to leave it out."""
    for location, found in _read_raw_records(path):
        yield location, found if isinstance(found, RecordError) else parse_text_values(found)


def read_valid_records(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield only the valid records, which show what a file contains."""
    return (
        (location, found)
        for location, found in read_records(path)
        if not isinstance(found, RecordError)
    )


def require_record(found: Record | RecordError) -> Record:
    """Return the record. Raises the RecordError if there is one in its place."""
    if isinstance(found, RecordError):
        raise found
    return found


def require_finite_meta(meta: Record) -> None:
    """Raise RecordError for a number in the metadata of a question that is not finite: the files
    of a run could not hold it."""
    try:
        found = find_nonfinite(meta)
    except RecursionError as error:
        raise RecordError("metadata nested too deeply") from error
    if found is not None:
        keys, number = found
        raise RecordError(
            "a number in the metadata that is not finite",
            f"metadata.{keys} is {json.dumps(number)}: write null or a number.",
        )


def _read_raw_records(source: Path) -> Iterator[tuple[str, Record | RecordError]]:
    path = resolve_data_file(source)
    if is_dataset_folder(path):
        for number, row in enumerate(read_dataset_folder(path), start=1):
            yield f"{path}, row {number}", row
        return
    formats = ".jsonl, .json, .parquet, .csv, .tsv or .xlsx"
    require_file(path, f"give a {formats} file, or {DATASET_FORM}")
    if is_workbook(path):
        for number, cells in read_sheet_rows(path):
            yield f"{path}, row {number}", cells
        return
    require_text_file(path)
    suffix = get_suffix(path)
    if suffix in _TABLE_SUFFIXES:
        yield from _read_table_rows(path)
    elif suffix == ".json" and _is_single_value(path):
        for number, record in enumerate(_read_elements(path), start=1):
            yield f"{path}, element {number}", record
    else:
        for number, found in iter_json_lines(path):
            yield f"{path}, line {number}", parse_line(found)


def parse_line(found: Record | DuplicateKeyObject | InvalidLine) -> Record | RecordError:
    """Return the object of a line of JSON, or the reason to leave it out."""
    match found:
        case InvalidLine(fault):
            return RecordError("a line that is not a JSON object", f"the line {fault}")
        case DuplicateKeyObject():
            return make_repeated_key_error(found)
    return found


def parse_json(text: str, reason: str) -> Any:
    """Return the value of a JSON text. Raises RecordError with the reason `reason`, and for a
    repeated key."""
    decoder = DuplicateKeyDecoder()
    try:
        found = decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(reason) from error
    if decoder.duplicates:
        raise make_repeated_key_error(decoder.duplicates[0])
    return found


def get_suffix(path: Path) -> str:
    """Return the suffix that names the file format, such as .tsv, ignoring a trailing .gz."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


# -- tables ------------------------------------------------------------------------------------

_TABLE_SUFFIXES = (".parquet", ".csv", ".tsv")
_ROWS_PER_BATCH = 10_000  # converted to Python objects at a time


def _read_table_rows(path: Path) -> Iterator[tuple[str, Record | RecordError]]:
    """Yield the rows of a table, converting one batch at a time to Python objects."""
    suffix = get_suffix(path)
    with raise_read_errors(path, f"give a whole {suffix[1:]} file"):
        if suffix != ".parquet":
            require_utf8(path)
        rows: Iterator[Record | MismatchedRow]
        rows = _read_parquet_rows(path) if suffix == ".parquet" else read_csv_rows(path, suffix)
        for number, row in enumerate(rows, start=1):
            if isinstance(row, MismatchedRow):
                # An unescaped quotation mark may have merged several rows into one.
                yield from (
                    (f"{path}, line {line}", _make_mismatch_error(row)) for line in row.lines
                )
            else:
                yield f"{path}, row {number}", row


def _read_parquet_rows(path: Path) -> Iterator[Record]:
    for batch in pyarrow.parquet.read_table(path).to_batches(max_chunksize=_ROWS_PER_BATCH):
        yield from batch.to_pylist()


def _make_mismatch_error(row: MismatchedRow) -> RecordError:
    """Return the reason to leave a row out. It is unknown which of its cells are missing, so the
    last ones are not assumed to be empty."""
    more = "more" if row.num_cells > row.num_columns else "fewer"
    return RecordError(
        f"{more} cells than its header has columns",
        f"its row has {row.num_cells} cells and the header {row.num_columns} columns: write an"
        " empty cell for each that is missing, and a cell with a separator or a line break in"
        " quotation marks.",
    )


# -- JSON --------------------------------------------------------------------------------------

_WRAPPER_KEYS = ("data", "Data")  # of SQuAD and TriviaQA, next to a version
_RECORD_LIST_KEYS = (
    *("train", "validation", "valid", "val", "dev", "test"),
    *("questions", "examples", "records", "rows", "items", "samples", "instances"),
)
_RECORD_KEYS = {"question", "Question", "problem", "query", "prompt", "messages", "conversations"}


def _is_single_value(path: Path) -> bool:
    """Return whether a .json file is a single value, as opposed to one record per line."""
    with open_maybe_gzip(path) as file:
        line = file.readline().lstrip(b"\xef\xbb\xbf")
        while line and not line.strip():
            line = file.readline()
        has_more = any(other.strip() for other in file)
    if line.lstrip().startswith(b"[") or not has_more:
        return True
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _read_elements(path: Path) -> Iterator[Record | RecordError]:
    """Yield the records of a JSON value: an array, or the array that an object wraps."""
    decoder = DuplicateKeyDecoder()
    with raise_read_errors(path, "fix the file"), open_maybe_gzip(path) as file:
        value = decoder.decode(file.read().decode("utf-8-sig"))
    elements = _unwrap(value, path) if isinstance(value, dict) else value
    if not isinstance(elements, list):
        raise UserError(
            f"{path} is not a list of records; write an array of objects, or JSON lines."
        )
    inside = {id(found) for found in find_duplicates(elements)} if decoder.duplicates else ()
    for found in decoder.duplicates:
        if id(found) not in inside:
            raise UserError(
                f"{path} has the key '{found.key}' twice in an object around its records; keep one"
                " of them."
            )
    for element in elements:
        repeated_keys = find_duplicates(element) if inside else []
        if _is_dialogue(element):
            element = {"conversations": element}
        if isinstance(element, dict):
            yield make_repeated_key_error(repeated_keys[0]) if repeated_keys else element
        else:
            yield RecordError(
                "an element that is not an object", "it is not an object; fix or remove it."
            )


def _is_dialogue(element: Any) -> bool:
    """Return whether an element is a bare list of turns."""
    turns = element if isinstance(element, list) else []
    return bool(turns) and all(isinstance(turn, dict) and "from" in turn for turn in turns)


def make_repeated_key_error(found: DuplicateKeyObject) -> RecordError:
    """Return the reason to leave out a record that contains an object with a repeated key."""
    return RecordError(
        f"the key '{found.key}' twice",
        f"it has the key '{found.key}' twice: keep one of them, or remove the record.",
    )


def _unwrap(value: Record, path: Path) -> list[Any]:
    for key in _WRAPPER_KEYS:
        if isinstance(inside := value.get(key), list):
            return inside
    if lists := _find_record_list_keys(value):
        if len(lists) > 1:
            raise UserError(
                f"{path} holds {len(lists)} lists of records, {' and '.join(map(repr, lists))}:"
                " write the intended list to a separate file, and give that file."
            )
        return list(value[lists[0]])
    columns = list(value.values())
    if len(columns) > 1 and all(isinstance(column, dict) for column in columns):
        numbers = columns[0].keys()
        if numbers and all(column.keys() == numbers for column in columns):
            return [{key: column[n] for key, column in value.items()} for n in numbers]
    return [value]


def _find_record_list_keys(value: Record) -> list[str]:
    """Return the keys of an object that hold lists of records, such as the splits of a data set."""
    if _RECORD_KEYS & value.keys():
        return []
    found = {key: value[key] for key in _RECORD_LIST_KEYS if isinstance(value.get(key), list)}
    return [key for key, rows in found.items() if rows and all(isinstance(r, dict) for r in rows)]


def first_filled(record: Record, keys: Sequence[str]) -> Any:
    """Return the value of the first key that the record fills, or None. A bare NaN is a missing
    value, as in some public files."""
    values = (record.get(key) for key in keys)
    return next((v for v in values if v not in (None, "", []) and v == v), None)


# -- records that are left out -----------------------------------------------------------------

MAX_REJECTED_SHARE = 0.1  # maximum fraction of the records of a file, without consent


class FileUse(NamedTuple):
    """Use of a record: the key of a recipe for its file, its description, and the advice to set
    the key."""

    key: str
    description: str
    advice: str


class RejectedRecords:
    """Records that are left out of the file or source `path`, with the first one as an example."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self.reasons = Counter[str]()
        self._first_message = ""
        self._wrong_key_error: RecipeKeyError | None = None

    def add(self, location: str, error: RecordError, use: FileUse | None = None) -> None:
        """Count a record. `use` is another use of the file (`file_formats.py`)."""
        if not self.reasons:
            self._first_message = f"{location}: {error.message}"
            if use is not None:
                self._wrong_key_error = make_wrong_key_error(f"{location} holds {error}", use)
        self.reasons[str(error)] += 1

    def require_few(self, num_accepted: int, max_share: float) -> None:
        """Raise UserError, with the first record as an example, if no record was accepted or the
        fraction of left-out records exceeds `max_share`."""
        if not num_accepted and self._wrong_key_error is not None:
            raise self._wrong_key_error
        if not num_accepted and len(self.reasons) == 1:
            raise UserError(self._first_message)
        total = num_accepted + self.reasons.total()
        require_few_rejected(
            self.path, total, self.reasons, max_share, self._first_message.removesuffix(".")
        )


def make_wrong_key_error(problem: str, use: FileUse) -> RecipeKeyError:
    """Return the error for a file with another use than the one asked for."""
    return RecipeKeyError(f"{problem}, but {use.description}: ", use.key, use.advice)


def parse_records(
    path: Path, parse: Callable[[Record], T], max_left_out: float
) -> tuple[list[T], Counter[str]]:
    """Return the records of a file as `parse` returns them, and counts of reasons for which others
    were left out: those for which it raises RecordError. Raises UserError for a damaged file, or if
    the fraction of left-out records exceeds `max_left_out`."""
    parsed: list[T] = []
    rejected = RejectedRecords(path)
    for location, found in read_records(path):
        try:
            parsed.append(parse(require_record(found)))
        except RecordError as error:
            rejected.add(location, error)
    rejected.require_few(len(parsed), max_left_out)
    return parsed, rejected.reasons


def require_few_rejected(
    path: Path | str, total: int, reasons: Counter[str], max_share: float, example: str
) -> None:
    """Raise UserError if the fraction of left-out records exceeds `max_share`: then the file most
    likely has an unsupported format. `example` describes the error of one record."""
    summary = ", ".join(f"{count} with {reason}" for reason, count in reasons.most_common())
    if reasons.total() == total > 0:
        raise UserError(
            f"no record of {path} can be read ({summary}; such as {example}): correct the file, or"
            " give another one."
        )
    if total and reasons.total() / total > max_share:  # the suggested share is then accepted
        share = math.ceil(100 * reasons.total() / total) / 100
        raise RecipeKeyError(
            f"{reasons.total()} of the {total} records of {path} would be left out ({summary}; such"
            f" as {example}): correct the file",
            "max_left_out",
            f", or allow it with max_left_out={share:g}",
            f"{share:g}",
        )
