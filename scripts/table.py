"""Print the tables of a sweep as markdown, so that documents and measured numbers agree: a table of
the rows, a table of their comparisons and, if there are several splits, a table by split.

python scripts/table.py runs/otc-table
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COSTS = ("seconds", "rollouts", "calls", "tokens")

HEADS = (
    "row",
    "exact match [95 % over seeds]",
    "lowest to highest seed",
    "F1",
    "calls per question (optimum)",
    "above the optimum, lowest to highest seed",
    "correct answers per call",
    "known questions without a call",
    "RL steps, simulated + real",
    "training seconds",
)


SPLIT_HEADS = (
    "questions",
    "row",
    *HEADS[1:3],
    *HEADS[4:6],
    "distance: needless + missing",
    "correct answers per call",
    "known questions with a call",
)


COST_HEADS = ("row", *(f"{what} of reinforcement learning" for what in COSTS))


COMPARISON_HEADS = (
    "comparison",
    "from",
    "to",
    "difference in exact match [95 % over seeds]",
    "gained, lost",
    "p",
)


def markdown(table: dict[str, Any]) -> list[str]:
    """Return the lines of the markdown tables for the content of a sweep's `report.json`."""
    lines = _table(HEADS, [cells(row) for row in table["rows"]])
    if taught := [row for row in table["rows"] if row["training"]]:
        lines += ["", *_table(COST_HEADS, [cost_cells(row) for row in taught])]
    if compared := table["comparisons"]:
        lines += ["", *_table(COMPARISON_HEADS, [comparison_cells(found) for found in compared])]
    if splits := list(table["rows"][0]["splits"]):
        found = [split_cells(split, row) for split in splits for row in table["rows"]]
        lines += ["", *_table(SPLIT_HEADS, found)]
    return lines


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"] + [
        f"| {' | '.join(row)} |" for row in rows
    ]


def split_cells(split: str, row: dict[str, Any]) -> list[str]:
    part = row["splits"][split]
    needless, missing = part["needless_calls_mean"], part["missing_calls_mean"]
    return [
        split,
        row["title"],
        *accuracy(part),
        calls(part),
        above(part),
        f"{number(part['calls_regret_mean'])}: {number(needless)} + {number(missing)}",
        number(part["tool_productivity"]),
        number(part["offloading_rate"]),
    ]


def comparison_cells(found: dict[str, Any]) -> list[str]:
    difference, interval, p = (
        found[key] for key in ("em_difference", "em_difference_ci95", "p_value")
    )
    shown = " [{:+.3f}, {:+.3f}]".format(*interval) if interval else ""
    return [
        found["title"],
        found["baseline"],
        found["model"],
        "" if difference is None else f"{difference:+.3f}{shown}",
        f"+{found['gained']}, -{found['lost']}",
        "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}",
    ]


def accuracy(rates: dict[str, Any]) -> list[str]:
    em = rates["em"]
    interval = " [{:.3f}, {:.3f}]".format(*em["ci95"]) if em["ci95"] else ""
    return [f"{em['mean']:.3f}{interval}", f"{em['min']:.3f} to {em['max']:.3f}"]


def cost_cells(row: dict[str, Any]) -> list[str]:
    return [row["title"], *(f"{row['training'][key]:,.0f}" for key in COSTS)]


def above(rates: dict[str, Any]) -> str:
    found = rates["calls_over_optimum"]
    if found is None:
        return ""
    return f"{found['mean']:+.0%}, {found['min']:+.0%} to {found['max']:+.0%}"


def calls(rates: dict[str, Any]) -> str:
    optimum = rates["calls_optimal_mean"]
    return number(rates["calls_mean"]) + ("" if optimum is None else f" ({optimum:.2f})")


def cells(row: dict[str, Any]) -> list[str]:
    steps = row["rl_steps"]
    return [
        row["title"],
        *accuracy(row),
        number(row["f1"], 3),
        calls(row),
        above(row),
        number(row["tool_productivity"]),
        number(row["known_no_call_rate"]),
        f"{steps['simulated']} + {steps['real']}" if row["kind"] == "rl" else "",
        f"{row['seconds']:.0f}",
    ]


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("run", type=Path, help="folder of a sweep, with report.json")
    report = parser.parse_args().run / "report.json"
    if not report.exists():
        parser.error(f"{report.parent} has no report.json: name the folder of a complete sweep.")
    print("\n".join(markdown(json.loads(report.read_text("utf-8")))))
