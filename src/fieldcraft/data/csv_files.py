"""Rows of CSV and TSV files, with each cell as the text that it contains."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pyarrow
import pyarrow.csv

from fieldcraft.data.file_types import open_maybe_gzip

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
    def cell_regex(self) -> str:
        plain = rf"[^{self.separator}\r\n]*+"
        return rf'(?:"(?:[^"]|"")*+"|(?!"){plain})' if self.allows_quotes else plain

    def has_balanced_quotes(self, text: str) -> bool:
        """Return whether each cell that starts with a quotation mark also ends with one."""
        table = rf"(?:{self.cell_regex}(?:{self.separator}|\r\n?|\n|\Z))*+"
        return re.fullmatch(table, text) is not None

    def row_lines(self, text: str) -> Iterator[range]:
        """Yield the line numbers of each row, from 1. Empty lines are not rows."""
        row = rf"(?:{self.cell_regex}{self.separator})*+{self.cell_regex}(?:\r\n?|\n|\Z)"
        number = 1
        for found in re.finditer(row, text):
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
