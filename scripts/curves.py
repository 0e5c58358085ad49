"""Draw curves of reinforcement learning stages, one colour per stage.

    python scripts/curves.py runs/autocoa-mini/rl2 docs/rl-400.png
    python scripts/curves.py runs/smollm2-otc/seed-*/em-ppo docs/smollm2.png

Thin lines are steps, thick lines are means over a quarter of the steps, at most 20.
"""

from __future__ import annotations

import argparse
import json
from itertools import cycle
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WINDOW = 20  # maximum steps
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")
CURVES = {
    "em": "exact match, sampled",
    "calls_mean": "calls per rollout (dashed: optimum)",
    "policy_tokens_mean": "policy tokens per rollout",
    "entropy": "entropy, nats per token",
    "correct_logp_mean": "log-probability per token, correct rollouts",
    "grad_norm": "gradient norm, before clipping",
}


def draw(axes: Axes, rows: list[dict[str, float]], key: str, colour: str) -> None:
    """Draw a metric over the steps with a value."""
    found = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
    steps, values = np.array(found).T
    means = running_means(values)
    if key == "calls_optimal_mean":
        axes.plot(steps, means, color=colour, linewidth=1, linestyle="--")
    else:
        axes.plot(steps, values, color=colour, alpha=0.35, linewidth=0.7)
        axes.plot(steps, means, color=colour, linewidth=1.6)


def running_means(values: np.ndarray) -> np.ndarray:
    """Return the running mean at each step."""
    window = min(WINDOW, max(1, len(values) // 4))
    starts = np.maximum(np.arange(len(values)) - window + 1, 0)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    means: np.ndarray = (sums[1:] - sums[starts]) / (np.arange(len(values)) + 1 - starts)
    return means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stages", type=Path, nargs="+", help="folders of stages in runs")
    parser.add_argument("picture", type=Path)
    given = parser.parse_args()
    if missing := [stage for stage in given.stages if not (stage / "metrics.jsonl").exists()]:
        parser.error(f"{missing[0]} has no metrics.jsonl: name the folder of a stage in a run.")
    files = [(stage / "metrics.jsonl").read_text("utf-8") for stage in given.stages]
    curves = [[json.loads(line) for line in file.splitlines()] for file in files]
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 8}):
        figure = Figure(figsize=(9, 4.6), layout="constrained", dpi=110)
        panels = figure.subplots(2, 3, sharex=True).flat
        for axes, (key, title) in zip(panels, CURVES.items(), strict=True):
            for colour, rows in zip(cycle(COLOURS), curves, strict=False):
                draw(axes, rows, key, colour)
                if key == "calls_mean":
                    draw(axes, rows, "calls_optimal_mean", colour)
            if key == "em":
                axes.set_ylim(0, 1.02)
            elif key != "correct_logp_mean":
                axes.set_ylim(bottom=0)
            axes.set_title(title, fontsize=8.5)
            axes.grid(axis="y", linewidth=0.4)
        figure.supxlabel("step", fontsize=8.5)
        figure.savefig(given.picture)


if __name__ == "__main__":
    main()
