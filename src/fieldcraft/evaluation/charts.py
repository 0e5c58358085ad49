"""Charts of the report, as small SVG strings drawn by matplotlib.

Colours are placeholders that become CSS variables, so that the page can switch between light and
dark. Text stays text, so that it can be selected and uses the page's font. A chart also contains
its values and their positions, which the page shows on hover.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FormatStrFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
)

Row = Mapping[str, Any]
CallRates = Sequence[tuple[int, float, bool]]  # calls, value, whether based on few trajectories

PALETTE_SIZE = 8
INK_COLOUR, MUTED_COLOUR, _GRID_COLOUR, CARD_COLOUR = "#a00001", "#a00002", "#a00003", "#a00004"
_COLOUR_NAMES = {
    INK_COLOUR: "ink",
    MUTED_COLOUR: "muted",
    _GRID_COLOUR: "line",
    CARD_COLOUR: "card",
}
_CSS_VARIABLES = {placeholder: f"var(--{name})" for placeholder, name in _COLOUR_NAMES.items()} | {
    f"#a0001{slot}": f"var(--stage{slot})" for slot in range(PALETTE_SIZE)
}
CHART_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fieldcraft",
    "text.parse_math": False,  # stage names are user-defined: "$" is a dollar
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _GRID_COLOUR,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelcolor": MUTED_COLOUR,
    "grid.color": _GRID_COLOUR,
    "grid.linewidth": 0.6,
    "text.color": INK_COLOUR,
    "axes.labelsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "xtick.color": MUTED_COLOUR,
    "ytick.color": MUTED_COLOUR,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}
CHART_INCHES = (4.2, 2.5)  # inches; the page scales a chart to its column
DASH_PATTERN = (0, (4, 3))


def set_log_scale(axis: Axes, low: float, high: float) -> None:
    """Set a logarithmic scale. Ticks are plain numbers, because matplotlib's default labels are
    formulas, which are not rendered here. Within a decade they are spaced evenly."""
    axis.set_yscale("log")
    log_locator = LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,))
    axis.yaxis.set_major_locator(MaxNLocator(4) if low < high < 10 * low else log_locator)
    axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axis.yaxis.set_minor_formatter(NullFormatter())


MAX_POINTS = 480  # over all panels: a line requires no more points than pixels


@dataclass(frozen=True, slots=True)
class Chart:
    """Chart whose `points` has one entry for each line or set of marks: its name, the names of the
    x and y quantities, and for each value its position in the SVG and the value itself."""

    title: str
    note: str
    svg: str
    wide: bool = False  # many panels: on a small screen, scroll instead of shrinking
    points: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """Values shown on hover: their positions and meaning. `x` and `y` name the two quantities; an x
    value may be a name."""

    axis: Axes
    name: str
    x: str
    y: str
    positions: Sequence[tuple[float, float]]
    values: Sequence[tuple[float | str, float]]


@mpl.rc_context(CHART_STYLE)
def draw_curves_over_seeds(
    runs: Mapping[str, Sequence[Sequence[Row]]], slots: Mapping[str, int]
) -> Chart:
    """Draw exact match and calls over the steps of several stages, in two panels: the mean over
    seeds, and every seed as a thin line. All are running means, because every step samples
    different questions."""
    figure = Figure(figsize=(11.2, 2.7), layout="constrained")
    accuracy, calls = figure.subplots(1, 2)
    panels = ((accuracy, "em", "exact match"), (calls, "calls_mean", "calls per rollout"))
    series = []
    for axis, key, measure in panels:
        for name, seeds in runs.items():
            colour = pick_colour(slots[name])
            lines = _compute_running_means(seeds, key)
            for line in lines:
                axis.plot(line, color=colour, alpha=0.3, linewidth=0.8)
            means = [(float(step), float(mean)) for step, mean in enumerate(np.mean(lines, axis=0))]
            axis.plot(*zip(*means, strict=True), color=colour, linewidth=2)
            hover_points = means[:: ceil(len(means) * len(runs) * len(panels) / MAX_POINTS)]
            series.append(ChartSeries(axis, name, "step", measure, hover_points, hover_points))
    first = next(iter(runs.values()))
    if first[0][0].get("calls_optimal_mean") is not None:
        optimum = np.mean(_compute_running_means(first, "calls_optimal_mean"), axis=0)
        calls.plot(
            optimum, color=INK_COLOUR, linewidth=1.2, linestyle=DASH_PATTERN, label="optimum"
        )
        _add_legend(calls)
    calls.set(ylim=(0, None))
    for axis, _, measure in panels:
        axis.set(xlabel="steps", ylabel=measure)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    note = "sampled training rollouts, mean over seeds; thin lines: individual seeds"
    return make_chart(figure, "Learning curves", note, series, wide=True)


def _compute_running_means(seeds: Sequence[Sequence[Row]], key: str) -> list[np.ndarray]:
    """Return one line per seed, all truncated to the shortest."""
    steps = min(len(rows) for rows in seeds)
    values = [np.array([float(row[key]) for row in rows[:steps]]) for rows in seeds]
    return [smooth(line, max(1, steps // 8)) for line in values]


def downsample_series(values: Sequence[float], max_points: int) -> np.ndarray:
    """Return the means over at most `max_points` equal bins, so that no point of a long run is
    dropped."""
    size = ceil(len(values) / max_points)
    bins = np.array_split(np.asarray(values), ceil(len(values) / size))
    return np.array([part.mean() for part in bins])


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Return the centred running mean, with a shorter window at the ends instead of padding."""
    kernel = np.ones(window)
    counts = np.convolve(np.ones(len(values)), kernel, mode="same")
    return np.convolve(values, kernel, mode="same") / counts


@mpl.rc_context(CHART_STYLE)
def draw_accuracy_against_calls(
    evals: Mapping[str, Row], stages: Sequence[str], slots: Mapping[str, int]
) -> Chart:
    """Draw exact match over calls per question for every evaluated model."""
    figure = Figure(figsize=CHART_INCHES, layout="constrained")
    axis = figure.subplots()
    width = 1.1 * max([1.0, *(e["calls_mean"] for e in evals.values())])
    positions = separate_overlaps(
        [(e["calls_mean"], e["em"]) for e in evals.values()], (0.03 * width, 0.06)
    )
    position = dict(zip(evals, positions, strict=True))
    path = [(position[name], evals[name]["em"]) for name in stages]
    axis.plot([x for x, _ in path], [y for _, y in path], color=MUTED_COLOUR, linewidth=0.8)
    series = []
    for name, entry in evals.items():
        style: Any = {"color": pick_colour(slots[name]), "markerfacecolor": CARD_COLOUR}
        low, high = entry["em_ci95"]
        axis.vlines(position[name], low, high, color=style["color"], linewidth=1.2)
        marker = "o" if name in stages else "D"
        axis.plot(position[name], entry["em"], marker, markersize=6, markeredgewidth=1.8, **style)
        values = [(entry["calls_mean"], entry["em"])]
        marks = [(position[name], entry["em"])]
        series.append(ChartSeries(axis, name, "calls per question", "exact match", marks, values))
    optimum = list(evals.values())[-1].get("calls_optimal_mean")
    if optimum is not None:
        axis.axvline(
            optimum, color=INK_COLOUR, linewidth=1, linestyle=DASH_PATTERN, label="optimum"
        )
        _add_legend(axis)
    axis.set(xlabel="calls per question", ylabel="exact match", ylim=(0, 1.05))
    axis.set_xlim(min(-0.04 * width, min(positions) - 0.02 * width), max(width, max(positions)))
    axis.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    note = "upper left is better; whiskers: 95 % intervals; equal points are next to each other"
    return make_chart(figure, "Accuracy against calls", note, series)


def separate_overlaps(
    points: Sequence[tuple[float, float]], min_distance: tuple[float, float]
) -> list[float]:
    """Return x positions for points, so that none hides another. Points within `min_distance` (x,
    y) of the first one are placed next to each other at this distance."""
    clusters: list[list[int]] = []
    for index, (x, y) in enumerate(points):
        for cluster in clusters:
            first = points[cluster[0]]
            if abs(x - first[0]) < min_distance[0] and abs(y - first[1]) < min_distance[1]:
                cluster.append(index)
                break
        else:
            clusters.append([index])
    positions = [x for x, _ in points]
    for cluster in clusters:
        for rank, index in enumerate(cluster):
            shift = rank - (len(cluster) - 1) / 2
            if shift:
                positions[index] = points[cluster[0]][0] + shift * min_distance[0]
    return positions


@mpl.rc_context(CHART_STYLE)
def draw_calls_by_stage(evals: Mapping[str, Row], slots: Mapping[str, int]) -> Chart:
    """Draw the executed calls per question of every evaluated model, with the optimum as a
    marker."""
    height = max(CHART_INCHES[1], 1.1 + 0.24 * len(evals))
    figure = Figure(figsize=(CHART_INCHES[0], height), layout="constrained")
    axis = figure.subplots()
    names = list(evals)
    calls = [evals[name]["calls_mean"] for name in names]
    colours = [pick_colour(slots[name]) for name in names]
    axis.barh(range(len(names)), calls, height=0.62, color=colours)
    _draw_optimum_marks(axis, [e.get("calls_optimal_mean") for e in evals.values()], across=True)
    axis.set_yticks(range(len(names)), [shorten(name, 16) for name in names])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    axis.grid(visible=True, axis="x")
    axis.set_xlabel("calls per question")
    marks = [(value, float(row)) for row, value in enumerate(calls)]
    values = list(zip(names, calls, strict=True))
    series = [ChartSeries(axis, "", "stage", "calls per question", marks, values)]
    return make_chart(figure, "Calls by stage", "against the oracle", series)


@mpl.rc_context(CHART_STYLE)
def draw_calls_by_hops(name: str, entry: Row, slot: int) -> Chart:
    """Draw the calls of one model by the number of hops of a question."""
    figure = Figure(figsize=CHART_INCHES, layout="constrained")
    axis = figure.subplots()
    parts = entry["by_hops"]
    calls = [part["calls_mean"] for part in parts.values()]
    axis.bar(range(len(parts)), calls, width=0.55, color=pick_colour(slot))
    optima = [part.get("calls_optimal_mean") for part in parts.values()]
    _draw_optimum_marks(axis, optima, across=False)
    axis.set_xticks(range(len(parts)), list(parts))
    axis.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axis.set(xlabel="hops", ylabel="calls per question")
    marks = [(float(index), value) for index, value in enumerate(calls)]
    values = list(zip(parts, calls, strict=True))
    series = [ChartSeries(axis, name, "hops", "calls per question", marks, values)]
    return make_chart(figure, f"Calls by hops, {name}", "against the oracle", series)


@mpl.rc_context(CHART_STYLE)
def draw_rates_by_calls(
    title: str, note: str, measure: str, lines: Mapping[str, CallRates], slots: Mapping[str, int]
) -> Chart:
    """Draw a value between 0 and 1, the `measure`, over the number of calls, with a line for each
    name; values based on few trajectories are hollow."""
    figure = Figure(figsize=CHART_INCHES, layout="constrained")
    axis = figure.subplots()
    series = []
    for name, points in lines.items():
        colour = pick_colour(slots[name])
        hover_points = [(float(k), value) for k, value, _ in points]
        axis.plot(
            [k for k, _ in hover_points], [v for _, v in hover_points], color=colour, linewidth=1.4
        )
        if hover_points:
            series.append(ChartSeries(axis, name, "calls", measure, hover_points, hover_points))
        for sparse, fill in ((False, colour), (True, CARD_COLOUR)):
            marked = [(k, value) for k, value, is_sparse in points if is_sparse is sparse]
            style: Any = {"color": colour, "markerfacecolor": fill, "markersize": 6}
            axis.plot([k for k, _ in marked], [v for _, v in marked], "o", **style)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="calls", ylim=(0, 1.03))
    return make_chart(figure, title, note, series)


def _draw_optimum_marks(axis: Axes, optima: Sequence[float | None], *, across: bool) -> None:
    known = [(position, value) for position, value in enumerate(optima) if value is not None]
    if not known:
        return
    positions, values = np.array([p for p, _ in known]), [v for _, v in known]
    draw = axis.vlines if across else axis.hlines
    draw(values, positions - 0.42, positions + 0.42, color=INK_COLOUR, linewidth=2, label="optimum")
    _add_legend(axis)


def _add_legend(axis: Axes) -> None:
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)


def pick_colour(slot: int) -> str:
    """Return the placeholder for `var(--stage<slot>)`; colours repeat if there are more stages than
    colours."""
    return f"#a0001{slot % PALETTE_SIZE}"


def shorten(name: str, max_characters: int) -> str:
    """Shorten a name to at most `max_characters` characters."""
    return name if len(name) <= max_characters else name[: max_characters - 1] + "…"


def make_chart(
    figure: Figure, title: str, note: str, series: Sequence[ChartSeries] = (), *, wide: bool = False
) -> Chart:
    """Convert a figure to a chart."""
    svg = _render_svg(figure, title)  # must be first, as it computes the layout
    return Chart(title, note, svg, wide, [_locate_points(figure, item) for item in series])


def _locate_points(figure: Figure, series: ChartSeries) -> dict[str, Any]:
    """Return the values and their positions in the SVG, in points (1/72 inch) from the top."""
    pixels = (
        series.axis.transData.transform(np.array(series.positions, dtype=float)) * 72 / figure.dpi
    )
    height = 72 * figure.get_figheight()
    points = [
        [round(float(x), 1), round(height - float(y), 1), _round_value(across), _round_value(up)]
        for (x, y), (across, up) in zip(pixels, series.values, strict=True)
    ]
    return {"name": series.name, "x": series.x, "y": series.y, "points": points}


def _round_value(value: float | str) -> float | str:
    """Round to four significant digits; a large integer keeps all digits."""
    if isinstance(value, str) or float(value).is_integer():
        return value if isinstance(value, str) else int(value)
    return float(f"{value:.4g}")


def _shorten_numbers(tag: re.Match[str]) -> str:
    """Round the numbers in a tag to two decimals; the text between tags is unchanged."""
    return re.sub(r"(\.\d\d)\d+", r"\1", tag[0])


def _render_svg(figure: Figure, label: str) -> str:
    buffer = io.StringIO()
    metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' id="[A-Za-z]+[\dA-Za-z.]*_\d+"', "", svg)  # identical names in every figure
    svg = re.sub(r"<style.*?</style>|; font-family: [^;\"]*", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg)
    svg = re.sub(r"<[^>]*>", _shorten_numbers, svg)
    for placeholder, variable in _CSS_VARIABLES.items():
        svg = svg.replace(placeholder, variable)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)
