"""Downloads: lists of trajectories as JSON lines or CSV, and the tables of a report as CSV."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fieldcraft.extensions.studio.rows import COLUMN_NAMES, ListedTrajectory

CSV_COLUMNS = ("run", "part", "kind", "number", *COLUMN_NAMES)
_FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")
# Groups of a summary that have rows of their own, or none.
_GROUP_KEYS = ("splits", "sources", "split", "by_hops", "by_level", "by_calls")
Entry = Mapping[str, Any]
Row = dict[str, Any]


def iter_json_lines(trajectories: Iterable[ListedTrajectory]) -> Iterator[bytes]:
    """Yield the unchanged lines of the files. The last line of a file may lack its end."""
    for trajectory in trajectories:
        yield trajectory.read_line().removesuffix(b"\n") + b"\n"


def iter_csv_lines(trajectories: Iterable[ListedTrajectory]) -> Iterator[str]:
    """Yield a header line, and one line for each trajectory."""
    yield _format_line(CSV_COLUMNS)
    for trajectory in trajectories:
        columns = trajectory.make_columns()
        yield _format_line([columns[name] for name in CSV_COLUMNS])


def make_report_tables(report: Mapping[str, Any]) -> dict[str, str]:
    """Return file names, each with a data URL that contains the file."""
    tables = {
        "evaluations.csv": list(make_evaluation_rows(report["evals"])),
        "comparisons.csv": list(report["pairwise"]),
    }
    return {name: _make_data_url(render_csv(rows)) for name, rows in tables.items() if rows}


def make_evaluation_rows(evals: Mapping[str, Entry]) -> Iterator[Row]:
    """Yield one row for each evaluation and, if its questions have several splits or data sources,
    one for each of these."""
    for name, entry in evals.items():
        yield {"name": name, "split": entry.get("split", "all"), **_flatten_entry(entry)}
        for split, part in (entry.get("splits", {}) | entry.get("sources", {})).items():
            yield {"name": name, "split": split, **_flatten_entry(part)}


def _flatten_entry(entry: Entry) -> Row:
    """Return every value of an entry; values inside a group, such as `known`, are named
    group.value."""
    row: Row = {}
    for key, value in entry.items():
        if key not in _GROUP_KEYS:
            row |= _flatten_value(key, value)
    return row


def _flatten_value(name: str, value: Any) -> Row:
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, Sequence) and not isinstance(value, str):
        parts = dict(enumerate(value)).items()
    else:
        return {name: value}
    row: Row = {}
    for key, inner in parts:
        row |= _flatten_value(f"{name}.{key}", inner)
    return row


def render_csv(rows: Sequence[Row]) -> str:
    """Render a table with a header; a missing number is an empty cell."""
    headers = list(dict.fromkeys(key for row in rows for key in row))
    lines = (_format_line([row.get(key, "") for key in headers]) for row in rows)
    return _format_line(headers) + "".join(lines)


def _format_line(values: Sequence[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(map(_escape_formula, values))
    return buffer.getvalue()


def _escape_formula(value: Any) -> Any:
    """Return the value of a cell. A text that a spreadsheet would interpret as a formula is
    prefixed with a quote."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_PREFIXES) else value


def _make_data_url(text: str) -> str:
    return "data:text/csv;base64," + base64.b64encode(text.encode(errors="replace")).decode()
