"""Tables of cells, CSV and TSV: each cell is the text that stands there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pyarrow
import pyarrow.csv

from fieldcraft.data.foreign import open_packed

# Bytes of a file that are read at once: a cell, such as the tests of a program, must fit.
_LEAST_BLOCK, _MOST_BLOCK = 2**24, 2**30
_ROWS = 10_000  # that become objects at once


class Misfit(NamedTuple):
    """A row with another number of cells than the header: nobody can tell whose each one is."""

    lines: range  # of the file, from 1
    cells: int
    columns: int


class _Layout(NamedTuple):
    """Separation of the cells of a file, and whether they may be quoted."""

    separator: str
    quoted: bool

    @property
    def cell(self) -> str:
        plain = rf"[^{self.separator}\r\n]*+"
        return rf'(?:"(?:[^"]|"")*+"|(?!"){plain})' if self.quoted else plain

    def is_whole(self, text: str) -> bool:
        """Tell whether each cell that begins with a quotation mark ends with one, too."""
        table = rf"(?:{self.cell}(?:{self.separator}|\r\n?|\n|\Z))*+"
        return re.fullmatch(table, text) is not None

    def lines(self, text: str) -> Iterator[range]:
        """Yield the numbers of the lines of each row, from 1. Lines without anything are no
        rows."""
        row = rf"(?:{self.cell}{self.separator})*+{self.cell}(?:\r\n?|\n|\Z)"
        number = 1
        for found in re.finditer(row, text):
            after = number + len(re.findall(r"\r\n?|\n", found[0]))
            if found[0].strip("\r\n"):
                yield range(number, max(after, number + 1))
            number = after


_CSV, _TSV, _UNQUOTED = _Layout(",", True), _Layout("\t", True), _Layout("\t", False)


def rows_of_cells(path: Path, kind: str) -> Iterator[dict[str, str] | Misfit]:
    """Yield the rows of a .csv or .tsv file; only a part of them at a time becomes objects. A CSV
    has no types: a guess would make 7 of the answer 007, and a date of 2009-01-03.

    Raises ValueError, or what pyarrow raises, for a file that is not understood.
    """
    bare = kind == ".tsv" and _has_no_header(path)
    layout = _UNQUOTED if bare else _layout(_text(path), kind)
    misfits: list[pyarrow.csv.InvalidRow] = []
    table = _table(path, layout, ["id", "text"] if bare else None, misfits)
    if not misfits:
        yield from _objects(table)
        return
    unfit = {row.number: row for row in misfits}
    fit = _objects(table)
    begins = 1 if bare else 2
    for number, lines in zip(count(1), layout.lines(_text(path)), strict=False):
        if (row := unfit.get(number)) is not None:
            yield Misfit(lines, row.actual_columns, row.expected_columns)
        elif number >= begins:
            yield next(fit)


def _text(path: Path) -> str:
    with open_packed(path) as file:
        return file.read().decode("utf-8-sig")


def _objects(table: pyarrow.Table) -> Iterator[dict[str, str]]:
    for batch in table.to_batches(max_chunksize=_ROWS):
        yield from batch.to_pylist()


def _layout(text: str, kind: str) -> _Layout:
    """Return the layout of a file. Raises ValueError for one in which text follows the quotation
    mark that ends a cell, as it does where marks are written as \\": such a cell would hold other
    signs than were meant, or swallow the records behind it. In a TSV in which each line has as
    many cells, the marks are those of its texts."""
    layout = _CSV if kind == ".csv" else _TSV
    if layout.is_whole(text):
        return layout
    cells = {line.count("\t") for line in text.split("\n") if line.strip("\r")}
    if kind == ".csv" or len(cells) > 1:
        raise ValueError("a quotation mark in a cell is not written twice")
    return _UNQUOTED


def _has_no_header(path: Path) -> bool:
    """Tell whether a TSV is MS MARCO's, a number and a text a line, in which nothing is quoted."""
    with open_packed(path) as file:
        first_cell, *others = file.readline().decode("utf-8-sig").rstrip("\r\n").split("\t")
    return len(others) == 1 and first_cell.isdecimal()


def _table(
    path: Path,
    layout: _Layout,
    columns: Sequence[str] | None,
    misfits: list[pyarrow.csv.InvalidRow],
) -> pyarrow.Table:
    """Return the rows that fit, each cell a text; the others are added to `misfits`."""

    def leave_out(row: pyarrow.csv.InvalidRow) -> str:
        misfits.append(row)
        return "skip"

    parse = pyarrow.csv.ParseOptions(
        delimiter=layout.separator,
        quote_char='"' if layout.quoted else False,
        newlines_in_values=True,
        invalid_row_handler=leave_out,
    )
    size = min(max(path.stat().st_size, _LEAST_BLOCK), _MOST_BLOCK)
    # Only one thread counts the rows.
    read = pyarrow.csv.ReadOptions(block_size=size, column_names=columns, use_threads=False)
    with pyarrow.csv.open_csv(path, read_options=read, parse_options=parse) as begin:
        names = begin.schema.names
    misfits.clear()
    _refuse_names(names, layout)
    texts = dict.fromkeys(names, pyarrow.string())
    convert = pyarrow.csv.ConvertOptions(column_types=texts, strings_can_be_null=False)
    table = pyarrow.csv.read_csv(path, read, parse, convert)
    return table.rename_columns([name.strip() for name in names])


def _refuse_names(names: Sequence[str], layout: _Layout) -> None:
    """Raise ValueError for columns that another sign separates, and for two of one name."""
    other = next((sign for sign in ";\t|" if sign in names[0]), None)
    if layout.separator == "," and len(names) == 1 and other is not None:
        raise ValueError(f"its columns are separated by {other!r} and not by commas")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two columns are called '{twice[0]}'")
