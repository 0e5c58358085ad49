"""Print the tables of a sweep as markdown, so that documents and measured numbers agree: a table of
the rows, a table of their comparisons, if there are several splits, a table by split, and tables of
simulated searches and of the real calls that they saved.

python scripts/table.py runs/otc-table
python scripts/table.py runs/smollm2-table --calls   both panels of AutoCoA's figure 3
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


SIMULATED_HEADS = (
    "row",
    "RL steps, simulated + real",
    "how well the model knows the facts",
    "simulated searches",
    "share that holds them",
    "exact match gained",
)


SAVED_HEADS = (
    "row",
    "rival with real steps only",
    "exact match of both",
    "real calls of the row",
    "real calls of the rival",
    "seeds",
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
    searches = [cells for entry in table.get("simulated", ()) for cells in simulated_cells(entry)]
    if searches:
        lines += ["", *_table(SIMULATED_HEADS, searches)]
    if saved := table.get("saved_calls"):
        lines += ["", *_table(SAVED_HEADS, [saved_cells(entry) for entry in saved])]
    return lines


def calls_markdown(table: dict[str, Any]) -> list[str]:
    """Return two markdown tables, by number of calls of a trajectory: the share of all correct
    answers, and the share of correct trajectories. An empty cell is a number that did not occur."""
    numbers = sorted({part["calls"] for row in table["rows"] for part in row["by_calls"]})
    shares, rates = [], []
    for row in table["rows"]:
        parts = {part["calls"]: part for part in row["by_calls"]}
        correct = max(sum(part["right"] for part in parts.values()), 1)
        found = [parts.get(calls) for calls in numbers]
        shares.append([row["title"], *(part and part["right"] / correct for part in found)])
        rates.append([row["title"], *(part and part["right"] / part["n"] for part in found)])
    lines = []
    for what, rows in (("share of correct answers", shares), ("success rate", rates)):
        cells = [[title, *(number(value, 3) for value in values)] for title, *values in rows]
        lines += [*_table([f"{what}, by calls", *map(str, numbers)], cells), ""]
    return lines[:-1]


def simulated_cells(entry: dict[str, Any]) -> list[list[str]]:
    """Return a line for all simulated searches of a row, and one for each band of knowledge."""
    gained = "" if entry["em_gained"] is None else f"{entry['em_gained']:+.3f}"
    steps = f"{entry['steps']} + {entry['real_steps']}"
    return [
        [entry["title"], steps, name, f"{part['n']:,}", f"{part['supports_answer']:.3f}", gained]
        for name, part in entry["fidelity"].items()
    ]


def saved_cells(entry: dict[str, Any]) -> list[str]:
    names = [entry["model"], entry["rival"]]
    if not entry["reached"]:
        return [*names, "", "", "", "0"]
    calls, rival = entry["calls"], entry["rival_calls"]
    return [*names, f"{entry['em']:.3f}", f"{calls:,.0f}", f"{rival:,.0f}", str(entry["reached"])]


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
    if em["mean"] is None:
        return ["", ""]
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
    parser.add_argument("--calls", action="store_true", help="print the rates by number of calls")
    arguments = parser.parse_args()
    report = arguments.run / "report.json"
    if not report.exists():
        parser.error(f"{report.parent} has no report.json: name the folder of a complete sweep.")
    found = json.loads(report.read_text("utf-8"))
    print("\n".join(calls_markdown(found) if arguments.calls else markdown(found)))
