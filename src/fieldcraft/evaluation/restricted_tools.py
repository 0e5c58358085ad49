"""Results of an evaluation on questions that offer only a subset of the tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fieldcraft.records.metrics import METRICS, format_exact_match, list_columns
from fieldcraft.terminal.figure_table import FigureTable

Entry = Mapping[str, Any]


class RestrictedToolsResult(NamedTuple):
    """Questions that offer the same tools: name of the evaluation, split, and summary."""

    name: str
    split: str
    entry: Entry


def find_restricted_results(evals: Mapping[str, Entry]) -> list[RestrictedToolsResult]:
    """Return the splits of each evaluation whose questions offer only a subset of the tools."""
    return [
        RestrictedToolsResult(name, split, part)
        for name, entry in evals.items()
        for split, part in entry.get("splits", {"": entry}).items()
        if part.get("offered") is not None
    ]


def build_restricted_table(results: list[RestrictedToolsResult]) -> FigureTable:
    """Return a table of calls of the offered tool: whether it is called, by its name, and with
    valid arguments."""
    [em] = METRICS["em"].columns
    columns = list_columns("offered", terminal=True)
    legend = {column.header: column.legend for column in (em, *(column for _, column in columns))}
    table = FigureTable(["tool", *legend], "Questions that offer only these tools.", legend)
    for name, split, entry in results:
        table.add_row(
            f"{name}: {split}" if split else name,
            ", ".join(entry["offered"]),
            "" if entry["em"] is None else format_exact_match(entry),
            *(metric.format_cell(column, entry) for metric, column in columns),
        )
    return table
