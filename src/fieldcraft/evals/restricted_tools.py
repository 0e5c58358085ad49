"""Results of an evaluation on questions that are asked with some of the tools alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fieldcraft.terminal.figure_table import FigureTable

Entry = Mapping[str, Any]


class RestrictedToolsResult(NamedTuple):
    """Questions with the same tools: whose evaluation, which split, and its summary."""

    name: str
    split: str
    entry: Entry


def find_restricted_results(evals: Mapping[str, Entry]) -> list[RestrictedToolsResult]:
    """Return the splits of each evaluation whose questions are asked with some of the tools
    alone."""
    return [
        RestrictedToolsResult(name, split, part)
        for name, entry in evals.items()
        for split, part in entry.get("splits", {"": entry}).items()
        if part.get("offered") is not None
    ]


def build_restricted_table(results: list[RestrictedToolsResult]) -> FigureTable:
    """Return a table: whether the tool of the prompt is called, by its name, and with arguments
    that fit it."""
    headers = (
        "tool",
        "EM [95 %]",
        "answers\nwith a call",
        "calls that\nname it",
        "of these\nfitting",
    )
    legend = {
        "EM [95 %]": "share of right answers, and its 95 % interval",
        "of these\nfitting": "with arguments that can be read and fit the tool",
    }
    table = FigureTable(headers, "Questions that are asked with these tools alone.", legend)
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
