"""Results of an evaluation on questions that offer only a subset of the tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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
    headers = (
        "tool",
        "EM [95 %]",
        "answers\nwith a call",
        "calls that\nname it",
        "of these\nfitting",
    )
    legend = {
        "EM [95 %]": "share of correct answers, and its 95 % interval",
        "of these\nfitting": "with valid arguments of the tool",
    }
    table = FigureTable(headers, "Questions that offer only these tools.", legend)
    for name, split, entry in results:
        low, high = entry["em_ci95"] or (0.0, 0.0)
        table.add_row(
            f"{name}: {split}" if split else name,
            ", ".join(entry["offered"]),
            "" if entry["em"] is None else f"{entry['em']:.3f} [{low:.3f}, {high:.3f}]",
            *(
                "" if entry[key] is None else f"{entry[key]:.2f}"
                for key in ("attempt_rate", "call_named_rate", "call_fitting_rate")
            ),
        )
    return table
