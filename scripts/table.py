"""Print the table of a sweep as markdown, so that documents and measured numbers agree.

python scripts/table.py runs/autocoa-table
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEADS = (
    "row",
    "exact match [95 % over seeds]",
    "lowest to highest seed",
    "F1",
    "calls a question (optimum)",
    "right answers a call",
    "known questions without a call",
    "RL steps, simulated + real",
    "training seconds",
)


def markdown(table: dict[str, Any]) -> list[str]:
    """The lines of a markdown table from the content of a sweep's `report.json`."""
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    return lines + [f"| {' | '.join(cells(row))} |" for row in table["rows"]]


def cells(row: dict[str, Any]) -> list[str]:
    em, steps = row["em"], row["rl_steps"]
    interval = " [{:.3f}, {:.3f}]".format(*em["ci95"]) if em["ci95"] else ""
    optimum = row["calls_optimal_mean"]
    return [
        row["title"],
        f"{em['mean']:.3f}{interval}",
        f"{em['min']:.3f} to {em['max']:.3f}",
        number(row["f1"], 3),
        number(row["calls_mean"]) + ("" if optimum is None else f" ({optimum:.2f})"),
        number(row["tool_productivity"]),
        number(row["known_no_call_rate"]),
        f"{steps['simulated']} + {steps['real']}" if row["kind"] == "rl" else "",
        f"{row['seconds']:.0f}",
    ]


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} RUN")
    report = Path(sys.argv[1], "report.json")
    print("\n".join(markdown(json.loads(report.read_text("utf-8")))))
