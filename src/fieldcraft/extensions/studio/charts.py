"""Charts of pages: their values, which static/plot.js draws.

A chart is data, so that the page draws it in its own size and colours, and shows its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Any, Literal

Row = Mapping[str, Any]
Points = list[tuple[float, float]]  # x, y
CallRates = Sequence[tuple[int, float, bool]]  # calls, value, whether based on few trajectories

PALETTE_SIZE = 8
MAX_POINTS = 480  # over all panels: a line requires no more points than pixels


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one colour: a line, marks, or both.

    Args:
        label: name next to the values at the pointer.
        slot: colour; None is the colour of text.
        points: x and y.
        line: "smooth" is a thin line, and a thick one of moving averages.
        marks: "tick" is a short horizontal line, as for an optimum.
        whiskers: low and high of each point.
        sparse: whether each point is based on few values, which hollows its mark.
        texts: whether the values are written next to the points.
    """

    label: str
    slot: int | None
    points: Points
    line: Literal["", "solid", "smooth", "thin", "dashed", "dotted"] = "solid"
    marks: Literal["", "dot", "ring", "diamond", "bar", "tick"] = ""
    whiskers: Sequence[tuple[float, float]] = ()
    sparse: Sequence[bool] = ()
    texts: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A stage along the x axis: its steps count from 0 at `start`, `scale` steps for a unit of the
    axis, or it is a single place with a name."""

    name: str
    start: float
    end: float
    has_steps: bool
    slot: int
    scale: float = 1.0
    starts_from: str = ""  # stage that it starts from, if not the previous one


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: the names of its axes, its values, and its reference line `optimum` at an x or a y.

    `top` is the end of a y axis that starts at 0. `names` are ticks, and `values` are shown instead
    of x positions. Charts with the same `group` share their pointer; `path` joins points in another
    order.
    """

    title: str
    note: str
    x: str
    y: str
    series: Sequence[Series]
    spans: Sequence[Span] = ()
    names: Sequence[tuple[float, str]] = ()
    values: Sequence[tuple[float, float]] = ()
    percent: bool = False
    log: bool = False
    top: float | None = None
    x_range: tuple[float, float] | None = None
    optimum: tuple[Literal["x", "y"], float] | None = None
    path: Points | None = None
    group: str = ""
    wide: bool = False


def draw_curves_over_seeds(
    runs: Mapping[str, Sequence[Sequence[Row]]], slots: Mapping[str, int]
) -> list[Chart]:
    """Return the charts of exact match and calls over the steps of several stages: the mean over
    seeds, and every seed as a thin line. All are running means, because every step samples
    different questions."""
    note = "sampled training rollouts, mean over seeds; thin lines: individual seeds"
    measures = {"em": "exact match", "calls_mean": "calls per rollout"}
    first = next(iter(runs.values()))
    charts = []
    for key, measure in measures.items():
        lines = {name: _compute_running_means(seeds, key) for name, seeds in runs.items()}
        series = [Series(name, slots[name], _average(part)) for name, part in lines.items()]
        if key == "calls_mean":
            optimum = _average(_compute_running_means(first, "calls_optimal_mean"))
            series.append(Series("optimum", None, optimum, "dashed"))
        series += [
            Series(name, slots[name], line, "thin") for name, part in lines.items() for line in part
        ]
        series = [part for part in series if part.points]
        if not series:
            continue
        highest = max(value for part in series for _, value in part.points)
        charts.append(
            Chart(
                f"Learning curves, {measure}",
                note,
                "step",
                measure,
                series,
                top=None if key == "em" else 1.05 * highest or 1.0,
                group="learning",
                wide=True,
            )
        )
    return charts


def _compute_running_means(seeds: Sequence[Sequence[Row]], key: str) -> list[Points]:
    """Return one line per seed, of the steps in which every seed has the value."""
    shared = [
        (float(step), [row[key] for row in rows])
        for step, rows in enumerate(zip(*seeds, strict=False))
        if all(row.get(key) is not None for row in rows)
    ]
    steps = [step for step, _ in shared]
    values_per_seed = zip(*(values for _, values in shared), strict=True)
    return [
        downsample([*zip(steps, smooth(values, max(1, len(steps) // 8)), strict=True)])
        for values in values_per_seed
    ]


def _average(lines: Sequence[Points]) -> Points:
    return [
        (points[0][0], fmean(value for _, value in points)) for points in zip(*lines, strict=True)
    ]


def downsample(points: Points, max_points: int = MAX_POINTS) -> Points:
    """Return the means over at most `max_points` equal bins, so that no point of a long run is
    dropped."""
    size = ceil(len(points) / max_points) if points else 1
    bins = [points[start : start + size] for start in range(0, len(points), size)]
    return [(fmean(x for x, _ in part), fmean(y for _, y in part)) for part in bins]


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Return the centred running mean, with a shorter window at the ends instead of padding."""
    before, after = window // 2, window - window // 2
    return [fmean(values[max(0, i - before) : i + after]) for i in range(len(values))]


def draw_accuracy_against_calls(
    evals: Mapping[str, Row], stages: Sequence[str], slots: Mapping[str, int]
) -> Chart:
    """Return the chart of exact match over calls per question for every evaluated model."""
    width = 1.1 * max([1.0, *(e["calls_mean"] for e in evals.values())])
    positions = separate_overlaps(
        [(e["calls_mean"], e["em"]) for e in evals.values()], (0.03 * width, 0.06)
    )
    places = dict(zip(evals, positions, strict=True))
    optimum = list(evals.values())[-1].get("calls_optimal_mean")
    series = [
        Series(
            name,
            slots[name],
            [(places[name], entry["em"])],
            "",
            "ring" if name in stages else "diamond",
            [entry["em_ci95"]],
        )
        for name, entry in evals.items()
    ]
    return Chart(
        "Accuracy against calls",
        "upper left is better; whiskers: 95 % intervals; equal points are next to each other",
        "calls per question",
        "exact match",
        series,
        values=[(places[name], entry["calls_mean"]) for name, entry in evals.items()],
        percent=True,
        top=1.05,
        x_range=(min(-0.04 * width, min(positions) - 0.02 * width), max(width, *positions)),
        optimum=None if optimum is None else ("x", optimum),
        path=[(places[name], evals[name]["em"]) for name in stages],
    )


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


def draw_calls_by_stage(evals: Mapping[str, Row], slots: Mapping[str, int]) -> Chart:
    """Return the chart of the executed calls per question of every evaluated model, with the
    optimum as a mark."""
    bars = [
        Series(name, slots[name], [(float(place), entry["calls_mean"])], "", "bar")
        for place, (name, entry) in enumerate(evals.items())
    ]
    return _make_bar_chart("Calls by stage", "stage", list(evals), bars, evals.values())


def draw_calls_by_hops(name: str, entry: Row, slot: int) -> Chart:
    """Return the chart of the calls of one model by the number of hops of a question."""
    parts = entry["by_hops"]
    calls = [(float(place), part["calls_mean"]) for place, part in enumerate(parts.values())]
    bars = [Series(name, slot, calls, "", "bar")]
    return _make_bar_chart(f"Calls by hops, {name}", "hops", list(parts), bars, parts.values())


def _make_bar_chart(
    title: str, x: str, names: Sequence[str], bars: Sequence[Series], entries: Any
) -> Chart:
    optima = [(float(place), e.get("calls_optimal_mean")) for place, e in enumerate(entries)]
    known = [(place, value) for place, value in optima if value is not None]
    series = [*bars, Series("optimum", None, known, "", "tick")] if known else bars
    highest = max(value for part in series for _, value in part.points)
    return Chart(
        title,
        "against the oracle",
        x,
        "calls per question",
        series,
        names=[(float(place), name) for place, name in enumerate(names)],
        top=1.1 * highest or 1.0,
        x_range=(-0.6, len(names) - 0.4),
    )


def draw_rates_by_calls(
    title: str, note: str, measure: str, lines: Mapping[str, CallRates], slots: Mapping[str, int]
) -> Chart:
    """Return the chart of a value between 0 and 1, the `measure`, over the number of calls, with a
    line for each name; values based on few trajectories are hollow."""
    series = [
        Series(
            name,
            slots[name],
            [(float(calls), value) for calls, value, _ in points],
            marks="dot",
            sparse=[is_sparse for *_, is_sparse in points],
        )
        for name, points in lines.items()
        if points
    ]
    return Chart(title, note, "calls", measure, series, top=1.03)
