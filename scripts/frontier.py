"""Draw exact match against calls for the rows of a sweep, with a lettered point per row.

The left panel shows exact match on the split of the calls, the right panel exact match on the other
split. Bars range from the lowest to the highest seed. Lines join rows that differ in one number.

python scripts/frontier.py runs/autocoa-frontier docs/frontier.png
python scripts/frontier.py runs/smollm2-frontier picture.png --calls heldout --other known
"""

from __future__ import annotations

import argparse
import json
import re
import string
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

JOINED = {r"s = [\d.]+": "questions without tools", r"OTC-GRPO, c = \d+": "price of calls"}


def draw(rows: list[dict[str, Any]], calls_split: str, split: str, axis: Axes) -> None:
    """Draw exact match of one split against the calls of another, for all trained rows."""
    points = {
        row["title"]: (row["splits"][calls_split], row["splits"][split]["em"])
        for row in rows
        if row["stages"] and row["splits"][split]["em"]["mean"] is not None
    }
    for pattern, label in JOINED.items():
        joined = [point for title, point in points.items() if re.fullmatch(pattern, title)]
        calls = [mixed["calls_mean"] for mixed, _ in joined]
        axis.plot(calls, [em["mean"] for _, em in joined], "--", linewidth=1, label=label)
    for letter, (title, (mixed, em)) in zip(string.ascii_lowercase, points.items(), strict=False):
        calls = mixed["calls_mean"]
        axis.vlines(calls, em["min"], em["max"], color="lightgrey", linewidth=1, zorder=0)
        axis.plot(calls, em["mean"], "ko", markersize=3)
        axis.annotate(letter, (calls, em["mean"]), (3, 3), textcoords="offset points", fontsize=8)
        axis.plot([], [], " ", label=f"{letter}  {title}")
    optimum = rows[0]["splits"][calls_split]["calls_optimal_mean"]
    axis.axvline(optimum, color="black", linewidth=0.8, linestyle=":", label="optimal calls")
    axis.set(xlabel=f"calls per question of '{calls_split}'", ylabel=f"exact match on '{split}'")


def main(folder: Path, picture: Path, calls: str, other: str) -> None:
    """Write a picture of a sweep's `report.json`; `calls` and `other` are splits."""
    rows = json.loads((folder / "report.json").read_text("utf-8"))["rows"]
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw(rows, calls, calls, left)
    draw(rows, calls, other, right)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside right center")
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="folder of a sweep, with report.json")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--calls", default="mixed", metavar="SPLIT", help="of the left panel")
    parser.add_argument("--other", default="heldout", metavar="SPLIT", help="of the right panel")
    given = parser.parse_args()
    if not (given.run / "report.json").exists():
        parser.error(f"{given.run} has no report.json: name the folder of a complete sweep.")
    main(given.run, given.picture, given.calls, given.other)
