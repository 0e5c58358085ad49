"""Downloads of what a list shows: the records as JSON lines, the columns as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from fieldcraft.view.index import NAMES
from fieldcraft.view.queries import Library

PIECE = 200  # rows that are in memory at once
HEAD = ("run", "part", "kind", "number", *NAMES)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def json_lines(library: Library, ids: Sequence[int]) -> Iterator[bytes]:
    """Yield the lines as they stand in their files."""
    for piece in _pieces(ids):
        for _, _, line in library.lines(piece):
            yield line


def csv_lines(library: Library, ids: Sequence[int]) -> Iterator[str]:
    """Yield a line of names, and one for each trajectory."""
    yield _line(HEAD)
    for piece in _pieces(ids):
        for row in library.rows_of(piece):
            yield _line([_cell(row.get(name)) for name in HEAD])


def _cell(value: Any) -> Any:
    """Return the value of a cell; a text that a spreadsheet would take for a formula gets a quote
    before it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _line(values: Sequence[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(values)
    return buffer.getvalue()


def _pieces(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[begin : begin + PIECE] for begin in range(0, len(ids), PIECE))
