"""Tables of the report as CSV, for a spreadsheet or a data frame."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]
Row = dict[str, Any]


def make_downloads(report: Mapping[str, Any]) -> dict[str, str]:
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
    """Return every number of an entry; numbers inside a group, such as `known`, are named
    group.number."""
    row: Row = {}
    for key, value in entry.items():
        if key in ("splits", "sources", "split", "by_hops", "by_level", "by_calls"):
            continue
        if isinstance(value, Mapping):
            row |= {f"{key}.{inner}": found for inner, found in value.items()}
        elif isinstance(value, Sequence) and not isinstance(value, str):
            row |= {f"{key}.{index}": found for index, found in enumerate(value)}
        else:
            row[key] = value
    return row


def render_csv(rows: Sequence[Row]) -> str:
    """Render a table with a header; a missing number is an empty cell."""
    headers = dict.fromkeys(key for row in rows for key in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(headers))
    writer.writeheader()
    writer.writerows({key: _escape_formula(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _escape_formula(value: Any) -> Any:
    """Return a value for a table; a name that a spreadsheet would interpret as a formula is
    escaped."""
    is_formula = isinstance(value, str) and value[:1] in tuple("=+-@\t\r")
    return f"'{value}" if is_formula else value


def _make_data_url(text: str) -> str:
    return "data:text/csv;base64," + base64.b64encode(text.encode(errors="replace")).decode()
