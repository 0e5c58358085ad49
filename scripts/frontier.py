"""Draw exact match against calls for the rows of a sweep, a point for each.

A bar goes from the lowest to the highest seed. Rows that differ in one number are joined.

python scripts/frontier.py runs/autocoa-frontier docs/frontier.png [SPLIT]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

JOINED = {r"s = [\d.]+": "questions without tools", r"OTC-GRPO, c = \d+": "a price on calls"}


def draw(table: dict[str, Any], split: str, path: Path) -> None:
    """Write a picture of the content of a sweep's `report.json`."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axis = figure.subplots()
    points = {row["title"]: row["splits"][split] for row in table["rows"]}
    for pattern, label in JOINED.items():
        joined = [point for title, point in points.items() if re.fullmatch(pattern, title)]
        calls = [point["calls_mean"] for point in joined]
        axis.plot(calls, [point["em"]["mean"] for point in joined], "--", linewidth=1, label=label)
    for title, point in points.items():
        em, calls = point["em"], point["calls_mean"]
        axis.vlines(calls, em["min"], em["max"], color="grey", linewidth=1)
        axis.plot(calls, em["mean"], "o", color="black", markersize=4)
        axis.annotate(title, (calls, em["mean"]), (4, 4), textcoords="offset points", fontsize=7)
    optimum = next(iter(points.values()))["calls_optimal_mean"]
    axis.axvline(optimum, color="black", linewidth=0.8, linestyle=":", label="optimum")
    axis.set(xlabel="calls a question", ylabel="exact match", title=f"questions of '{split}'")
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    folder, picture, *rest = sys.argv[1:]
    report = json.loads((Path(folder) / "report.json").read_text("utf-8"))
    draw(report, rest[0] if rest else next(iter(report["rows"][0]["splits"])), Path(picture))
