"""Downloads of a list: the records as JSON lines, the columns as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fieldcraft.extensions.studio.rows import COLUMN_NAMES, ListedTrajectory

CSV_COLUMNS = ("run", "part", "kind", "number", *COLUMN_NAMES)
_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")


def iter_json_lines(trajectories: Iterable[ListedTrajectory]) -> Iterator[bytes]:
    """Yield the unchanged lines of the files."""
    for trajectory in trajectories:
        yield trajectory.read_line()


def iter_csv_lines(trajectories: Iterable[ListedTrajectory]) -> Iterator[str]:
    """Yield a header line, and one line for each trajectory."""
    yield _format_line(CSV_COLUMNS)
    for trajectory in trajectories:
        columns = trajectory.make_columns()
        yield _format_line([_escape_cell(columns[name]) for name in CSV_COLUMNS])


def _escape_cell(value: Any) -> Any:
    """Return the value of a cell. A text that a spreadsheet would interpret as a formula is
    prefixed with a quote."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_PREFIXES) else value


def _format_line(values: Sequence[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(values)
    return buffer.getvalue()
