"""The charts of the report, as small SVG strings drawn by matplotlib.

Colours are placeholders that become CSS variables, so that the page can switch between light and
dark; text stays text, so that it can be selected and takes the page's font.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, MaxNLocator

Row = Mapping[str, Any]
Points = tuple[list[float], list[float]]
Rates = Sequence[tuple[int, float, bool]]  # calls, value, whether it rests on few trajectories

PALETTE_SIZE = 8
_INK, _MUTED, _GRID, _CARD = "#a00001", "#a00002", "#a00003", "#a00004"
_NAMED = {_INK: "ink", _MUTED: "muted", _GRID: "line", _CARD: "card"}
_VARIABLES = {placeholder: f"var(--{name})" for placeholder, name in _NAMED.items()} | {
    f"#a0001{slot}": f"var(--stage{slot})" for slot in range(PALETTE_SIZE)
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fieldcraft",
    "text.parse_math": False,  # stage names are the user's: "$" is a dollar
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _GRID,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelcolor": _MUTED,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "text.color": _INK,
    "axes.labelsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}
_SIZE = (5.6, 2.7)  # inches; the page scales a chart to its column
_MOST_POINTS = 480  # over all panels: a line never needs more than the pixels it crosses


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    note: str
    svg: str
    wide: bool = False  # many panels: a small screen scrolls instead of shrinking it


@dataclass(frozen=True, slots=True)
class Curve:
    """A key of the metric rows and how to draw it. `supervised` leaves out stages with a reward:
    the loss of a policy gradient says nothing about progress."""

    key: str
    title: str
    note: str
    top: float | None = None
    supervised: bool = False


CURVES = (
    Curve("reward_mean", "Reward", "mean over rollouts"),
    Curve("em", "Exact match while training", "sampled rollouts", top=1.0),
    Curve("calls_mean", "Tool calls", "per rollout"),
    Curve("fidelity/holds", "Fidelity", "simulated searches that hold the fact", top=1.0),
    Curve("needless_calls_mean", "Needless calls", "above the oracle, per rollout"),
    Curve("missing_calls_mean", "Missing calls", "below the oracle, per rollout"),
    Curve("offloading_rate", "Offloading", "known questions with a call", top=1.0),
    Curve("policy_tokens_mean", "Length", "policy tokens per rollout"),
    Curve("entropy", "Entropy", "nats per token"),
    Curve("correct_logp_mean", "Likelihood of right answers", "log-probability per token"),
    Curve("ratio", "Policy ratio", "mean over tokens"),
    Curve("loss", "Supervised loss", "nats per token, log scale", supervised=True),
    Curve("grad_norm", "Gradient norm", "before clipping"),
    Curve("tokens_per_second", "Throughput", "tokens per second"),
)


def learning_curves(rows: Mapping[str, Sequence[Row]], slots: Mapping[str, int]) -> list[Chart]:
    """One chart for every metric that was logged, with a panel for each stage that logged it."""
    charts = []
    for curve in CURVES:
        panels = {stage: _points(curve, part) for stage, part in rows.items()}
        panels = {stage: points for stage, points in panels.items() if points[0]}
        if panels:
            svg = _panels(panels, curve, slots)
            charts.append(Chart(curve.title, curve.note, svg, wide=len(panels) > 3))
    return charts


def _points(curve: Curve, rows: Sequence[Row]) -> Points:
    if curve.supervised and any("reward_mean" in row for row in rows):
        return [], []
    found = [
        (float(row.get("step", index)), float(row[curve.key]))
        for index, row in enumerate(rows)
        if row.get(curve.key) is not None and isfinite(row[curve.key])
    ]
    return [x for x, _ in found], [y for _, y in found]


@mpl.rc_context(_STYLE)
def _panels(panels: Mapping[str, Points], curve: Curve, slots: Mapping[str, int]) -> str:
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (stage, points) in zip(axes, panels.items(), strict=True):
        colour = stage_colour(slots[stage])
        x, y = (_thinned(values, _MOST_POINTS // len(panels)) for values in points)
        window = max(1, len(y) // 12)
        axis.plot(x, y, color=colour, alpha=0.35 if window > 1 else 1, linewidth=1.2)
        if window > 1:
            axis.plot(x, _smooth(y, window), color=colour, linewidth=1.8)
        axis.set_title(_short(stage, 9 if len(panels) > 1 else 24), color=colour, fontsize=9.5)
        axis.set_xticks([x[-1]], [f"{points[0][-1]:,.0f}"], ha="right")
    if curve.supervised and all(min(y) > 0 for _, y in panels.values()):
        axes[0].set_yscale("log")
        axes[0].yaxis.set_major_formatter(FormatStrFormatter("%g"))
    elif all(min(y) >= 0 for _, y in panels.values()):
        top = curve.top or max(max(y) for _, y in panels.values())
        axes[0].set_ylim(0, 1.05 * top or 1.0)
    axes[0].set_xlabel("steps", loc="left")
    return _svg(figure, curve.title)


@mpl.rc_context(_STYLE)
def curves_over_seeds(
    runs: Mapping[str, Sequence[Sequence[Row]]], slots: Mapping[str, int]
) -> Chart:
    """Exact match and calls over the steps of several stages, side by side: the mean over seeds,
    and thin every seed. All are running means, for every step asks other questions."""
    figure = Figure(figsize=(2 * _SIZE[0], _SIZE[1]), layout="constrained")
    accuracy, calls = figure.subplots(1, 2)
    for name, seeds in runs.items():
        colour = stage_colour(slots[name])
        for axis, key in ((accuracy, "em"), (calls, "calls_mean")):
            lines = _running_means(seeds, key)
            for line in lines:
                axis.plot(line, color=colour, alpha=0.3, linewidth=0.8)
            axis.plot(np.mean(lines, axis=0), color=colour, linewidth=2)
    first = next(iter(runs.values()))
    if first[0][0].get("calls_optimal_mean") is not None:
        optimum = np.mean(_running_means(first, "calls_optimal_mean"), axis=0)
        calls.plot(optimum, color=_INK, linewidth=1.2, linestyle=(0, (4, 3)), label="optimum")
        _legend(calls)
    accuracy.set(xlabel="steps", ylabel="exact match")
    calls.set(xlabel="steps", ylabel="calls per rollout", ylim=(0, None))
    for axis in (accuracy, calls):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    note = "sampled rollouts while training, means over seeds, thin: every seed"
    return Chart("Learning curves", note, _svg(figure, "Learning curves"), wide=True)


def _running_means(seeds: Sequence[Sequence[Row]], key: str) -> list[np.ndarray]:
    """One line a seed, all as long as the shortest."""
    steps = min(len(rows) for rows in seeds)
    values = [np.array([float(row[key]) for row in rows[:steps]]) for rows in seeds]
    return [_smooth(line, max(1, steps // 8)) for line in values]


def _thinned(values: Sequence[float], most: int) -> np.ndarray:
    """Means over at most `most` equal bins, so that no point of a long run is dropped."""
    size = ceil(len(values) / most)
    bins = np.array_split(np.asarray(values), ceil(len(values) / size))
    return np.array([part.mean() for part in bins])


def _smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred running mean that shortens its window at the ends instead of inventing values."""
    kernel = np.ones(window)
    counts = np.convolve(np.ones(len(values)), kernel, mode="same")
    return np.convolve(values, kernel, mode="same") / counts


@mpl.rc_context(_STYLE)
def accuracy_against_calls(
    evals: Mapping[str, Row], stages: Sequence[str], slots: Mapping[str, int]
) -> Chart:
    """Where every evaluated model stands: right answers over the calls it took to get them."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axis = figure.subplots()
    path = [evals[name] for name in stages]
    axis.plot([e["calls_mean"] for e in path], [e["em"] for e in path], color=_MUTED, linewidth=0.8)
    for name, entry in evals.items():
        marker = "o" if name in stages else "D"
        colour = stage_colour(slots[name])
        low, high = entry["em_ci95"]
        axis.vlines(entry["calls_mean"], low, high, color=colour, linewidth=1.2)
        axis.plot(entry["calls_mean"], entry["em"], marker, color=colour, markersize=7)
    optimum = list(evals.values())[-1].get("calls_optimal_mean")
    if optimum is not None:
        axis.axvline(optimum, color=_INK, linewidth=1, linestyle=(0, (4, 3)), label="optimum")
        _legend(axis)
    axis.set(xlabel="calls per question", ylabel="exact match", ylim=(0, 1.03))
    axis.set_xlim(left=min(0, -0.04 * axis.get_xlim()[1]))
    note = "upper left is better; whiskers are 95 % intervals"
    return Chart("Accuracy against calls", note, _svg(figure, "Accuracy against calls"))


@mpl.rc_context(_STYLE)
def calls_by_stage(evals: Mapping[str, Row], slots: Mapping[str, int]) -> Chart:
    """Executed calls per question of every evaluated model, with the optimum as a mark."""
    height = max(_SIZE[1], 1.1 + 0.24 * len(evals))
    figure = Figure(figsize=(_SIZE[0], height), layout="constrained")
    axis = figure.subplots()
    names = list(evals)
    calls = [evals[name]["calls_mean"] for name in names]
    colours = [stage_colour(slots[name]) for name in names]
    axis.barh(range(len(names)), calls, height=0.62, color=colours)
    _optimum_marks(axis, [e.get("calls_optimal_mean") for e in evals.values()], across=True)
    axis.set_yticks(range(len(names)), [_short(name, 16) for name in names])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.grid(visible=True, axis="x")
    axis.set_xlabel("calls per question")
    return Chart("Calls by stage", "against the oracle", _svg(figure, "Calls by stage"))


@mpl.rc_context(_STYLE)
def calls_by_hops(name: str, entry: Row, slot: int) -> Chart:
    """Calls of one model by the number of relations a question asks along."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axis = figure.subplots()
    parts = entry["by_hops"]
    calls = [part["calls_mean"] for part in parts.values()]
    axis.bar(range(len(parts)), calls, width=0.55, color=stage_colour(slot))
    optima = [part.get("calls_optimal_mean") for part in parts.values()]
    _optimum_marks(axis, optima, across=False)
    axis.set_xticks(range(len(parts)), list(parts))
    axis.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axis.set(xlabel="hops", ylabel="calls per question")
    return Chart(f"Calls by hops, {name}", "against the oracle", _svg(figure, "Calls by hops"))


@mpl.rc_context(_STYLE)
def gain_against_fidelity(points: Sequence[tuple[str, float, float]]) -> Chart:
    """What reinforcement learning with simulated observations gains, over how faithful they are:
    (name, fidelity, gain in exact match) of each simulator."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axis = figure.subplots()
    for slot, (name, fidelity, gain) in enumerate(points):
        axis.plot(fidelity, gain, "o", color=stage_colour(slot), markersize=7)
        axis.annotate(_short(name, 16), (fidelity, gain), (6, 4), textcoords="offset points")
    axis.axhline(0, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
    axis.set(xlabel="simulated searches that hold the fact", ylabel="gain in exact match")
    axis.set_xlim(-0.03, 1.2)  # names stand right of their points
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1])
    note = "held-out questions, after and before reinforcement learning"
    return Chart("Gain against fidelity", note, _svg(figure, "Gain against fidelity"))


@mpl.rc_context(_STYLE)
def by_calls(title: str, note: str, lines: Mapping[str, Rates], slots: Mapping[str, int]) -> Chart:
    """A value between 0 and 1 over the number of calls, a line for each name; what rests on few
    trajectories is hollow."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    axis = figure.subplots()
    for name, points in lines.items():
        colour = stage_colour(slots[name])
        axis.plot([k for k, _, _ in points], [v for _, v, _ in points], color=colour, linewidth=1.4)
        for few, fill in ((False, colour), (True, _CARD)):
            marked = [(k, value) for k, value, is_few in points if is_few is few]
            style: Any = {"color": colour, "markerfacecolor": fill, "markersize": 6}
            axis.plot([k for k, _ in marked], [v for _, v in marked], "o", **style)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="calls", ylim=(0, 1.03))
    return Chart(title, note, _svg(figure, title))


def _optimum_marks(axis: Axes, optima: Sequence[float | None], *, across: bool) -> None:
    known = [(place, value) for place, value in enumerate(optima) if value is not None]
    if not known:
        return
    places, values = np.array([p for p, _ in known]), [v for _, v in known]
    draw = axis.vlines if across else axis.hlines
    draw(values, places - 0.42, places + 0.42, color=_INK, linewidth=2, label="optimum")
    _legend(axis)


def _legend(axis: Axes) -> None:
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)


def stage_colour(slot: int) -> str:
    """The placeholder that becomes `var(--stage<slot>)`; more stages than colours take turns."""
    return f"#a0001{slot % PALETTE_SIZE}"


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _shorter_numbers(tag: re.Match[str]) -> str:
    """Coordinates need no more than two decimals; the text between tags keeps what it says."""
    return re.sub(r"(\.\d\d)\d+", r"\1", tag[0])


def _svg(figure: Figure, label: str) -> str:
    buffer = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' id="[A-Za-z]+[\dA-Za-z.]*_\d+"', "", svg)  # the same names in every figure
    svg = re.sub(r"<style.*?</style>|; font-family: [^;\"]*", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg)
    svg = re.sub(r"<[^>]*>", _shorter_numbers, svg)
    for placeholder, variable in _VARIABLES.items():
        svg = svg.replace(placeholder, variable)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
