"""Downloads of a list: the records as JSON lines, the columns as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from fieldcraft.extensions.studio.index import COLUMN_NAMES
from fieldcraft.extensions.studio.queries import TrajectoryLibrary

ROWS_PER_READ = 200  # rows in memory at the same time
CSV_COLUMNS = ("run", "part", "kind", "number", *COLUMN_NAMES)
_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")


def iter_json_lines(library: TrajectoryLibrary, ids: Sequence[int]) -> Iterator[bytes]:
    """Yield the unchanged lines of the files."""
    for batch in _iter_batches(ids):
        for _, _, line in library.read_lines(batch):
            yield line


def iter_csv_lines(library: TrajectoryLibrary, ids: Sequence[int]) -> Iterator[str]:
    """Yield a header line, and one line for each trajectory."""
    yield _format_line(CSV_COLUMNS)
    for batch in _iter_batches(ids):
        for row in library.get_rows_with_ids(batch):
            yield _format_line([_escape_cell(row.get(name)) for name in CSV_COLUMNS])


def _escape_cell(value: Any) -> Any:
    """Return the value of a cell. A text that a spreadsheet would interpret as a formula is
    prefixed with a quote."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_PREFIXES) else value


def _format_line(values: Sequence[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(values)
    return buffer.getvalue()


def _iter_batches(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[begin : begin + ROWS_PER_READ] for begin in range(0, len(ids), ROWS_PER_READ))
