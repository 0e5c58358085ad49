"""Rows of CSV, TSV and Excel files (XLSX), with each cell as text, and other types of files.

Cells of a workbook with numbers or dates store no text, so they are written as Excel displays them
by default. A formula is represented by its last result.

Unsupported types (other spreadsheets, archives, text in other encodings) are detected from the
first bytes of a file, regardless of its name.
"""

from __future__ import annotations

import codecs
import datetime
import gzip
import re
import zipfile
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple, cast

import pyarrow
import pyarrow.csv

from fieldcraft.records.reading import raise_read_errors
from fieldcraft.types import UserError

# Bytes of a file that are read at once; a single cell, such as the tests of a program, must fit.
_MIN_BLOCK_BYTES, _MAX_BLOCK_BYTES = 2**24, 2**30
_ROWS_PER_BATCH = 10_000  # converted to Python objects at a time


class MismatchedRow(NamedTuple):
    """A row with a different number of cells than the header, whose columns are thus unknown."""

    lines: range  # of the file, from 1
    num_cells: int
    num_columns: int


class _CsvFormat(NamedTuple):
    """Cell separator of a file, and whether cells may be quoted."""

    separator: str
    allows_quotes: bool

    @property
    def row_regex(self) -> re.Pattern[str]:
        """Pattern of a row whose quoted cells end with a quotation mark."""
        plain = rf"[^{self.separator}\r\n]*+"
        quoted = '"[^"]*+(?:""[^"]*+)*"'
        cell = rf'(?:{quoted}|(?!"){plain})' if self.allows_quotes else plain
        return re.compile(rf"{cell}(?:{self.separator}{cell})*(?:\r\n?|\n|\Z)")

    def has_balanced_quotes(self, text: str) -> bool:
        """Return whether each cell that starts with a quotation mark also ends with one."""
        row_regex, position = self.row_regex, 0
        while position < len(text):
            row = row_regex.match(text, position)
            if row is None:
                return False
            position = row.end()
        return True

    def row_lines(self, text: str) -> Iterator[range]:
        """Yield the line numbers of each row, from 1. Empty lines are not rows."""
        number = 1
        for found in self.row_regex.finditer(text):
            after = number + len(re.findall(r"\r\n?|\n", found[0]))
            if found[0].strip("\r\n"):
                yield range(number, max(after, number + 1))
            number = after


_CSV, _TSV, _UNQUOTED_TSV = _CsvFormat(",", True), _CsvFormat("\t", True), _CsvFormat("\t", False)


def read_csv_rows(path: Path, suffix: str) -> Iterator[dict[str, str] | MismatchedRow]:
    """Yield the rows of a .csv or .tsv file, converting one batch at a time to objects. Values are
    not converted: a guess would turn the answer 007 into 7, and 2009-01-03 into a date.

    Raises ValueError, or an exception of pyarrow, for a file that cannot be parsed.
    """
    headerless = suffix == ".tsv" and _is_headerless(path)
    csv_format = _UNQUOTED_TSV if headerless else _detect_format(_read_text(path), suffix)
    misfits: list[pyarrow.csv.InvalidRow] = []
    table = _read_table(path, csv_format, ["id", "text"] if headerless else None, misfits)
    if not misfits:
        yield from _table_rows(table)
        return
    mismatched = {row.number: row for row in misfits}
    valid_rows = _table_rows(table)
    first_row = 1 if headerless else 2
    for number, lines in zip(count(1), csv_format.row_lines(_read_text(path)), strict=False):
        if (row := mismatched.get(number)) is not None:
            yield MismatchedRow(lines, row.actual_columns, row.expected_columns)
        elif number >= first_row:
            yield next(valid_rows)


def _read_text(path: Path) -> str:
    with open_maybe_gzip(path) as file:
        return file.read().decode("utf-8-sig")


def _table_rows(table: pyarrow.Table) -> Iterator[dict[str, str]]:
    for batch in table.to_batches(max_chunksize=_ROWS_PER_BATCH):
        yield from batch.to_pylist()


def _detect_format(text: str, suffix: str) -> _CsvFormat:
    """Return the format of a file. Raises ValueError if text follows the quotation mark that ends a
    cell, as in files that escape it as \\": such a cell would be parsed wrongly, or swallow the
    following records. In a TSV whose lines all have the same number of cells, quotation marks are
    part of the text."""
    csv_format = _CSV if suffix == ".csv" else _TSV
    if csv_format.has_balanced_quotes(text):
        return csv_format
    cell_counts = {line.count("\t") for line in text.split("\n") if line.strip("\r")}
    if suffix == ".csv" or len(cell_counts) > 1:
        raise ValueError("a quotation mark in a cell is not written twice")
    return _UNQUOTED_TSV


def _is_headerless(path: Path) -> bool:
    """Return whether a TSV has MS MARCO's format: a number and a text per line, unquoted."""
    with open_maybe_gzip(path) as file:
        first_cell, *others = file.readline().decode("utf-8-sig").rstrip("\r\n").split("\t")
    return len(others) == 1 and first_cell.isdecimal()


def _read_table(
    path: Path,
    csv_format: _CsvFormat,
    columns: Sequence[str] | None,
    misfits: list[pyarrow.csv.InvalidRow],
) -> pyarrow.Table:
    """Return the valid rows, with all cells as text; invalid rows are added to `misfits`."""

    def skip_row(row: pyarrow.csv.InvalidRow) -> str:
        misfits.append(row)
        return "skip"

    parse_options = pyarrow.csv.ParseOptions(
        delimiter=csv_format.separator,
        quote_char='"' if csv_format.allows_quotes else False,
        newlines_in_values=True,
        invalid_row_handler=skip_row,
    )
    size = min(max(path.stat().st_size, _MIN_BLOCK_BYTES), _MAX_BLOCK_BYTES)
    # Rows are numbered only without threads.
    read_options = pyarrow.csv.ReadOptions(block_size=size, column_names=columns, use_threads=False)
    with pyarrow.csv.open_csv(
        path, read_options=read_options, parse_options=parse_options
    ) as reader:
        names = reader.schema.names
    misfits.clear()
    _require_usable_columns(names, csv_format)
    texts = dict.fromkeys(names, pyarrow.string())
    convert_options = pyarrow.csv.ConvertOptions(column_types=texts, strings_can_be_null=False)
    table = pyarrow.csv.read_csv(path, read_options, parse_options, convert_options)
    return table.rename_columns([name.strip() for name in names])


def _require_usable_columns(names: Sequence[str], csv_format: _CsvFormat) -> None:
    """Raise ValueError for columns with another separator, and for repeated column names."""
    other = next((sign for sign in ";\t|" if sign in names[0]), None)
    if csv_format.separator == "," and len(names) == 1 and other is not None:
        raise ValueError(f"its columns are separated by {other!r} and not by commas")
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the column name '{duplicates[0]}' is not unique")


# -- workbooks ---------------------------------------------------------------------------------

_WORKBOOK_MEMBER = "xl/workbook.xml"


def is_workbook(path: Path) -> bool:
    """Return whether a file is a workbook, regardless of its name."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return _WORKBOOK_MEMBER in archive.namelist()


def read_sheet_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of the only non-empty sheet, each with its row number. The first non-empty
    row names the columns; empty cells are empty texts.

    Raises UserError for a damaged file, for several non-empty sheets, and for columns with missing
    or repeated names.
    """
    library = _import_openpyxl(path)
    with raise_read_errors(path, "save the workbook again, or export its sheet as CSV in UTF-8"):
        book = library.load_workbook(path, read_only=True, data_only=True)
        sheets = {sheet.title: _non_empty_rows(sheet) for sheet in book.worksheets}
        book.close()
    filled = {title: rows for title, rows in sheets.items() if rows}
    if len(filled) != 1:
        found = ", ".join(map(repr, filled)) or "none"
        raise UserError(
            f"{path} must have one sheet that is not empty, and has {found}: export the intended"
            " sheet as CSV in UTF-8, and give that."
        )
    (_, header), *rows = next(iter(filled.values()))
    names = _column_indices(path, header, rows)
    for number, cells in rows:
        yield number, {name: _get_cell(cells, index) for name, index in names.items()}


def _non_empty_rows(sheet: Any) -> list[tuple[int, list[str]]]:
    """Return the rows with at least one non-empty cell, and their numbers, from 1."""
    sheet.reset_dimensions()  # some programs write a range that ends before the last cell
    rows = ([_cell_text(cell) for cell in row] for row in sheet.iter_rows())
    return [(number, cells) for number, cells in enumerate(rows, start=1) if any(cells)]


def _cell_text(cell: Any) -> str:
    value = cell.value
    match value:
        case None:
            return ""
        case bool():
            return str(value).upper()
        case float():
            return str(int(value)) if value.is_integer() else repr(value)
        case datetime.datetime() if value.time() == datetime.time():
            return value.date().isoformat()
        case datetime.datetime():
            return value.isoformat(" ")
        case datetime.date() | datetime.time():
            return value.isoformat()
    return "" if cell.data_type == "e" else str(value)  # such as #N/A


def _column_indices(
    path: Path, header: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]]
) -> dict[str, int]:
    """Return the index of each column by name. Raises UserError for a repeated name, and for a
    column with cells but no name."""
    names: dict[str, int] = {}
    for index in range(max([len(header), *(len(cells) for _, cells in rows)])):
        name = _get_cell(header, index).strip()
        if name in names:
            raise UserError(f"{path} has two columns called '{name}': rename or remove one.")
        if name:
            names[name] = index
        elif any(_get_cell(cells, index) for _, cells in rows):
            raise UserError(
                f"{path} has no name above its column {index + 1}: write names of all columns into"
                " the first row."
            )
    return names


def _get_cell(cells: Sequence[str], index: int) -> str:
    return cells[index] if index < len(cells) else ""


def _import_openpyxl(path: Path) -> ModuleType:
    try:
        import openpyxl
    except ImportError as error:
        raise UserError(
            f"{path} is a spreadsheet, which needs the package openpyxl: pip install"
            " 'fieldcraft[xlsx]', or export its sheet as CSV in UTF-8 and give that."
        ) from error
    return openpyxl


# -- types of files ----------------------------------------------------------------------------

_HEAD_BYTES = 512
_CHUNK_BYTES = 2**20
_SPREADSHEET = "is a spreadsheet: export its sheet as CSV in UTF-8, and give that"
_ZIP = b"PK\x03\x04"
_OFFICE_MARKS = (b"[Content_Types].xml", b"_rels/", b"xl/", b"mimetype", b"Index/Document.iwa")
_UNSUPPORTED_TYPES = (
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", _SPREADSHEET),  # Excel 97 to 2003
    (_ZIP, "is a ZIP archive: unpack it, and give the file that it contains"),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive: unpack it, and give the file that it contains"),
    (b"%PDF-", "is a PDF: give its records as CSV or JSON"),
)
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def open_maybe_gzip(path: Path) -> IO[bytes]:
    """Open a file, decompressed if its name ends in .gz."""
    return cast(IO[bytes], gzip.open(path) if path.suffix == ".gz" else path.open("rb"))


def require_text_file(path: Path) -> None:
    """Raise UserError for a spreadsheet, an archive, and text in UTF-16 or UTF-32."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(_ZIP) and any(name in head for name in _OFFICE_MARKS):
        raise UserError(f"{path} {_SPREADSHEET}.")
    for magic, message in _UNSUPPORTED_TYPES:
        if head.startswith(magic):
            raise UserError(f"{path} {message}.")
    if name := _detect_wide_encoding(head):
        raise UserError(f"{path} is written in {name}: {_conversion_advice(path, name)}.")


def require_utf8(path: Path) -> None:
    """Raise UserError for text that is not encoded in UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_maybe_gzip(path) as file:
        try:
            while piece := file.read(_CHUNK_BYTES):
                decoder.decode(piece)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} is not written in UTF-8: save it as 'CSV UTF-8' or, if it comes from"
                f" Windows, {_conversion_advice(path, 'CP1252')}."
            ) from error


def _detect_wide_encoding(head: bytes) -> str:
    """Return the encoding of text with two or four bytes per character, or "" for other text."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    if head.startswith(_UTF16):
        return "UTF-16"
    for start, name in ((1, "UTF-16LE"), (0, "UTF-16BE")):  # every other byte of ASCII is zero
        if len(head) > 3 and not any(head[start:40:2]) and all(head[1 - start : 40 : 2]):
            return name
    return ""


def _conversion_advice(path: Path, encoding: str) -> str:
    new = path.with_name(f"{path.stem}-utf8{path.suffix}")
    return f"convert it: iconv -f {encoding} -t UTF-8 '{path}' > '{new}'"
