"""Tables of cells, CSV and TSV: each cell is the text that stands there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pyarrow
import pyarrow.csv

from fieldcraft.data.file_types import open_maybe_gzip

# Bytes of a file that are read at once: a cell, such as the tests of a program, must fit.
_MIN_BLOCK_BYTES, _MAX_BLOCK_BYTES = 2**24, 2**30
_ROWS_PER_BATCH = 10_000  # that become objects at once


class MismatchedRow(NamedTuple):
    """A row with another number of cells than the header: nobody can tell whose each one is."""

    lines: range  # of the file, from 1
    num_cells: int
    num_columns: int


class _CsvFormat(NamedTuple):
    """Separation of the cells of a file, and whether they may be quoted."""

    separator: str
    allows_quotes: bool

    @property
    def cell_regex(self) -> str:
        plain = rf"[^{self.separator}\r\n]*+"
        return rf'(?:"(?:[^"]|"")*+"|(?!"){plain})' if self.allows_quotes else plain

    def has_balanced_quotes(self, text: str) -> bool:
        """Tell whether each cell that begins with a quotation mark ends with one, too."""
        table = rf"(?:{self.cell_regex}(?:{self.separator}|\r\n?|\n|\Z))*+"
        return re.fullmatch(table, text) is not None

    def row_lines(self, text: str) -> Iterator[range]:
        """Yield the numbers of the lines of each row, from 1. Lines without anything are no
        rows."""
        row = rf"(?:{self.cell_regex}{self.separator})*+{self.cell_regex}(?:\r\n?|\n|\Z)"
        number = 1
        for found in re.finditer(row, text):
            after = number + len(re.findall(r"\r\n?|\n", found[0]))
            if found[0].strip("\r\n"):
                yield range(number, max(after, number + 1))
            number = after


_CSV, _TSV, _UNQUOTED_TSV = _CsvFormat(",", True), _CsvFormat("\t", True), _CsvFormat("\t", False)


def read_csv_rows(path: Path, suffix: str) -> Iterator[dict[str, str] | MismatchedRow]:
    """Yield the rows of a .csv or .tsv file; only a part of them at a time becomes objects. A CSV
    has no types: a guess would make 7 of the answer 007, and a date of 2009-01-03.

    Raises ValueError, or what pyarrow raises, for a file that is not understood.
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
    """Return the layout of a file. Raises ValueError for one in which text follows the quotation
    mark that ends a cell, as it does where marks are written as \\": such a cell would hold other
    signs than were meant, or swallow the records behind it. In a TSV in which each line has as
    many cells, the marks are those of its texts."""
    csv_format = _CSV if suffix == ".csv" else _TSV
    if csv_format.has_balanced_quotes(text):
        return csv_format
    cell_counts = {line.count("\t") for line in text.split("\n") if line.strip("\r")}
    if suffix == ".csv" or len(cell_counts) > 1:
        raise ValueError("a quotation mark in a cell is not written twice")
    return _UNQUOTED_TSV


def _is_headerless(path: Path) -> bool:
    """Tell whether a TSV is MS MARCO's, a number and a text a line, in which nothing is quoted."""
    with open_maybe_gzip(path) as file:
        first_cell, *others = file.readline().decode("utf-8-sig").rstrip("\r\n").split("\t")
    return len(others) == 1 and first_cell.isdecimal()


def _read_table(
    path: Path,
    csv_format: _CsvFormat,
    columns: Sequence[str] | None,
    misfits: list[pyarrow.csv.InvalidRow],
) -> pyarrow.Table:
    """Return the rows that fit, each cell a text; the others are added to `misfits`."""

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
    # Only one thread counts the rows.
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
    """Raise ValueError for columns that another sign separates, and for two of one name."""
    other = next((sign for sign in ";\t|" if sign in names[0]), None)
    if csv_format.separator == "," and len(names) == 1 and other is not None:
        raise ValueError(f"its columns are separated by {other!r} and not by commas")
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the column name '{duplicates[0]}' is not unique")
