"""Curves of a stage of reinforcement learning as a picture.

    python scripts/curves.py runs/autocoa-mini/rl2 docs/rl-400.png

Thin lines are steps, thick ones means over twenty.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WINDOW = 20
CURVES = {
    "em": "exact match, sampled",
    "calls_mean": "calls a rollout (dashed: optimum)",
    "policy_tokens_mean": "policy tokens a rollout",
    "entropy": "entropy, nats a token",
    "correct_logp_mean": "log-probability a token, right rollouts",
    "grad_norm": "gradient norm, before clipping",
}


def draw(axes: Axes, rows: list[dict[str, float]], key: str, *, dashed: bool = False) -> None:
    """A metric over the steps that have it."""
    found = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
    steps, values = np.array(found).T
    starts = np.maximum(np.arange(len(values)) - WINDOW + 1, 0)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    means = (sums[1:] - sums[starts]) / (np.arange(len(values)) + 1 - starts)
    if dashed:
        axes.plot(steps, means, color="black", linewidth=1, linestyle="--")
    else:
        axes.plot(steps, values, color="tab:blue", alpha=0.35, linewidth=0.7)
        axes.plot(steps, means, color="tab:blue", linewidth=1.6)


def main() -> None:
    stage, target = map(Path, sys.argv[1:])
    rows = [json.loads(line) for line in (stage / "metrics.jsonl").read_text().splitlines()]
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 8}):
        figure = Figure(figsize=(9, 4.6), layout="constrained", dpi=110)
        panels = figure.subplots(2, 3, sharex=True).flat
        for axes, (key, title) in zip(panels, CURVES.items(), strict=True):
            draw(axes, rows, key)
            if key == "calls_mean":
                draw(axes, rows, "calls_optimal_mean", dashed=True)
            if key == "em":
                axes.set_ylim(0, 1.02)
            elif key != "correct_logp_mean":
                axes.set_ylim(bottom=0)
            axes.set_title(title, fontsize=8.5)
            axes.grid(axis="y", linewidth=0.4)
        figure.supxlabel("step", fontsize=8.5)
        figure.savefig(target)


if __name__ == "__main__":
    main()
