"""Charts of a run's training: one per metric, with a panel for each stage, and an overview.

The overview of the whole run shows exact match above and calls below, over all stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fieldcraft.evaluation.charts import (
    CARD_COLOUR,
    CHART_INCHES,
    CHART_STYLE,
    DASH_PATTERN,
    INK_COLOUR,
    MAX_POINTS,
    MUTED_COLOUR,
    Chart,
    ChartSeries,
    Row,
    downsample_series,
    make_chart,
    pick_colour,
    set_log_scale,
    shorten,
    smooth,
)
from fieldcraft.records.metrics import METRICS, Metric

MetricsRows = Sequence[Row]
Points = list[tuple[float, float]]  # step, value

REWARD_KEY = "reward_mean"  # logged only by stages of reinforcement learning
OPTIMAL_CALLS_KEY = "calls_optimal_mean"


def draw_learning_curves(rows: Mapping[str, MetricsRows], slots: Mapping[str, int]) -> list[Chart]:
    """Draw the charts of the logged metrics, with a panel for each stage that logged one."""
    charts = []
    for metric in (metric for metric in METRICS.values() if metric.chart):
        logged_rows = {stage: part for stage, part in rows.items() if _read_curve(metric, part)}
        if logged_rows:
            charts.append(_draw_panels(logged_rows, metric, slots))
    return charts


def _read_curve(metric: Metric, rows: MetricsRows) -> Points:
    return [] if metric.supervised and has_rewards(rows) else read_points(rows, metric.key)


def has_rewards(rows: MetricsRows) -> bool:
    """Return whether rows were logged by reinforcement learning."""
    return any(REWARD_KEY in row for row in rows)


def read_points(rows: MetricsRows, key: str) -> Points:
    """Return (step, value) of the rows with a finite number at `key`."""
    return [
        (float(row.get("step", index)), float(row[key]))
        for index, row in enumerate(rows)
        if row.get(key) is not None and isfinite(row[key])
    ]


@mpl.rc_context(CHART_STYLE)
def _draw_panels(
    rows: Mapping[str, MetricsRows], metric: Metric, slots: Mapping[str, int]
) -> Chart:
    wide = len(rows) > 3
    figure = Figure(
        figsize=(CHART_INCHES[0] * (2 if wide else 1), CHART_INCHES[1]), layout="constrained"
    )
    axes = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
    series = []
    for axis, (stage, part) in zip(axes, rows.items(), strict=True):
        colour = pick_colour(slots[stage])
        points = _read_curve(metric, part)
        series.append(draw_line(axis, stage, points, MAX_POINTS // len(rows), metric.title, colour))
        if heldout := read_points(part, metric.heldout):
            series.append(draw_heldout(axis, f"{stage}, held out", heldout, metric.title, colour))
        axis.set_title(shorten(stage, 12 if len(rows) > 1 else 24), color=colour, fontsize=9.5)
        axis.xaxis.set_major_locator(
            MaxNLocator(2 if wide else 4, integer=True, steps=[1, 2, 5, 10])
        )
        axis.xaxis.set_major_formatter("{x:,.0f}")
    values = [y for part in rows.values() for _, y in _read_curve(metric, part)]
    if metric.supervised and min(values) > 0:
        set_log_scale(axes[0], min(values), max(values))
    elif min(values) >= 0:
        axes[0].set_ylim(0, 1.05 * (1.0 if metric.percent else max(values)) or 1.0)
    axes[0].set_xlabel("step", loc="left")
    return make_chart(figure, metric.title, metric.chart, series, wide=wide)


def draw_line(
    axis: Axes, name: str, points: Points, max_points: int, label: str, colour: str
) -> ChartSeries:
    """Draw a thin line and, if it is long enough, its running mean in bold."""
    x, y = (downsample_series([point[i] for point in points], max_points) for i in (0, 1))
    window = max(1, len(y) // 12)
    axis.plot(x, y, color=colour, alpha=0.35 if window > 1 else 1, linewidth=1.2)
    if window > 1:
        axis.plot(x, smooth(y, window), color=colour, linewidth=1.8)
    elif len(y) == 1:
        axis.plot(x, y, "o", color=colour, markersize=4)
    return _make_series(axis, name, list(zip(x.tolist(), y.tolist(), strict=True)), label)


def draw_heldout(axis: Axes, name: str, points: Points, label: str, colour: str) -> ChartSeries:
    """Draw values measured on held-out questions: rings joined by a dashed line."""
    x, y = [step for step, _ in points], [value for _, value in points]
    axis.plot(x, y, color=colour, linewidth=0.9, linestyle=(0, (2, 2)))
    axis.plot(
        x, y, "o", color=colour, markerfacecolor=CARD_COLOUR, markersize=5, markeredgewidth=1.6
    )
    return _make_series(axis, name, points, label)


def _make_series(axis: Axes, name: str, points: Points, label: str) -> ChartSeries:
    return ChartSeries(axis, name, "step", label.lower(), points, points)


# -- overview of all stages --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChartLayout:
    """Size of the chart in inches, and the number of adjacent evaluation points that take the same
    width as all steps."""

    size: tuple[float, float]
    points: int
    rotation: int  # of the names below points


DESKTOP_LAYOUT, PHONE_LAYOUT = ChartLayout((11.6, 4.6), 14, 0), ChartLayout((4.6, 5.2), 7, 60)
LEGEND_TEXTS = {
    "sampled": "training rollouts, running mean",
    "heldout": "held-out questions during training",
    "evaluated": "evaluation after the stage",
    "optimum": "least calls that suffice, evaluation",
    "optimum-training": "least calls that suffice, rollouts",
}


@dataclass(frozen=True, slots=True)
class StageSpan:
    """A stage in the overview chart: its range on the x axis, its metric rows (empty if it has no
    steps in the chart) and its evaluation result."""

    name: str
    start: float
    end: float
    rows: MetricsRows
    entry: Row | None
    starts_from: str = ""  # stage that it starts from, if not the previous one


def lay_out_spans(
    curves: Mapping[str, MetricsRows],
    evals: Mapping[str, Row],
    order: Sequence[str],
    starts: Mapping[str, str | None],
    layout: ChartLayout,
) -> list[StageSpan]:
    """Return the spans of the stages, in sequence. Steps of reinforcement learning are placed on
    the x axis and count from 0. Every other evaluated stage is a point before, between or after
    them, at equal distances. `starts` maps a stage to the stage that its settings name as its
    start."""
    rl_stages = {name for name in order if has_rewards(curves.get(name, ()))}
    total = sum(len(curves[name]) for name in rl_stages)
    point_width = max(1.0, total / layout.points)
    visible = [name for name in order if name in rl_stages or name in evals]
    position = -point_width * next(
        (i for i, name in enumerate(visible) if name in rl_stages), len(visible)
    )
    spans: list[StageSpan] = []
    for name in visible:
        before = order[order.index(name) - 1] if order.index(name) else None
        start = starts.get(name)
        starts_from = start if start is not None and start != before else ""
        rows = curves[name] if name in rl_stages else ()
        width = len(rows) if rows else point_width
        spans.append(
            StageSpan(name, position, position + width, rows, evals.get(name), starts_from)
        )
        position += width
    return spans


def draw_run_overview(
    curves: Mapping[str, MetricsRows],
    evals: Mapping[str, Row],
    order: Sequence[str],
    starts: Mapping[str, str | None],
    slots: Mapping[str, int],
) -> list[Chart]:
    """Draw exact match above and calls below, over the whole run, for a wide screen and for a
    narrow one; an empty list if there is nothing to show."""
    drawings = []
    for layout in (DESKTOP_LAYOUT, PHONE_LAYOUT):
        spans = lay_out_spans(curves, evals, order, starts, layout)
        if any(
            read_points(span.rows, "em") or _read_evaluation(span, "em") is not None
            for span in spans
        ):
            drawings.append(_draw_overview(spans, slots, layout))
    return drawings


def make_overview_legend(
    curves: Mapping[str, MetricsRows], evals: Mapping[str, Row], order: Sequence[str]
) -> dict[str, str]:
    """Return the markers in the chart, each with its meaning."""
    spans = lay_out_spans(curves, evals, order, {}, DESKTOP_LAYOUT)
    is_present = {
        "sampled": any(span.rows for span in spans),
        "heldout": any(read_points(span.rows, METRICS["em"].heldout) for span in spans),
        "evaluated": any(span.entry for span in spans),
        "optimum": any(_read_evaluation(span, OPTIMAL_CALLS_KEY) is not None for span in spans),
        "optimum-training": any(read_points(span.rows, OPTIMAL_CALLS_KEY) for span in spans),
    }
    return {key: text for key, text in LEGEND_TEXTS.items() if is_present[key]}


@mpl.rc_context(CHART_STYLE)
def _draw_overview(
    spans: Sequence[StageSpan], slots: Mapping[str, int], layout: ChartLayout
) -> Chart:
    figure = Figure(figsize=layout.size, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    series: list[ChartSeries] = []
    for span in spans:
        colour = pick_colour(slots[span.name])
        series += _draw_stage(above, span, "em", "exact match", colour)
        series += _draw_stage(below, span, "calls_mean", "calls per question", colour)
    _draw_optimum(below, spans)
    above.set(ylabel="exact match", ylim=(0, 1.08), yticks=[0, 0.25, 0.5, 0.75, 1])
    above.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    below.set(ylabel="calls per question", ylim=(0, 1.15 * below.get_ylim()[1]))
    below.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    _label_steps(below, spans, layout)
    _draw_boundaries((above, below), spans, slots, layout)
    return make_chart(figure, "Course of the run", "", series)


def _draw_stage(
    axis: Axes, span: StageSpan, key: str, label: str, colour: str
) -> Iterator[ChartSeries]:
    """Draw one measure of a stage: over its steps, and in the evaluation after them."""
    if points := read_points(span.rows, key):
        series = draw_line(axis, span.name, _shift_points(span, points), MAX_POINTS, label, colour)
        yield _with_stage_steps(series, span, "training rollouts")
    if points := read_points(span.rows, METRICS[key].heldout):
        series = draw_heldout(axis, span.name, _shift_points(span, points), label, colour)
        yield _with_stage_steps(series, span, "held out")
    if (value := _read_evaluation(span, key)) is not None:
        yield _draw_evaluation(axis, span, key, value, label, colour)


def _draw_evaluation(
    axis: Axes, span: StageSpan, key: str, value: float, label: str, colour: str
) -> ChartSeries:
    """Draw a point with its value next to its interval."""
    x = span.end if span.rows else (span.start + span.end) / 2
    low, high = (span.entry or {}).get("em_ci95") or (value, value)
    if key != "em":
        low = high = value
    axis.vlines(x, low, high, color=colour, linewidth=1.4)
    axis.plot(x, value, "o", color=colour, markersize=7, zorder=3, clip_on=False)
    text = f"{100 * value:.0f} %" if key == "em" else f"{value:.2f}"
    below = key == "em" and value > 0.85
    axis.annotate(
        text,
        (x, low if below else high),
        (0, -15 if below else 8),
        textcoords="offset points",
        ha="center",
        bbox={"facecolor": CARD_COLOUR, "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
    )
    return ChartSeries(axis, "evaluation", "stage", label, [(x, value)], [(span.name, value)])


def _read_evaluation(span: StageSpan, key: str) -> float | None:
    return span.entry.get(key) if span.entry else None


def _shift_points(span: StageSpan, points: Points) -> Points:
    """Return the points with steps counted from 0 in the stage, shifted to the x axis."""
    return [(span.start + step, value) for step, value in points]


def _with_stage_steps(series: ChartSeries, span: StageSpan, label: str) -> ChartSeries:
    """Return the series with the step numbers of the stage, which are shown on hover."""
    values = [(round(x - span.start, 2), y) for x, y in series.positions]
    return ChartSeries(
        series.axis, f"{span.name}, {label}", "step", series.y, series.positions, values
    )


def _draw_optimum(axis: Axes, spans: Sequence[StageSpan]) -> None:
    """Draw the least number of calls for the evaluation, along the whole axis, and for the rollouts
    of a step."""
    optima = [_read_evaluation(span, OPTIMAL_CALLS_KEY) for span in spans]
    last = next((value for value in reversed(optima) if value is not None), None)
    if last is not None:
        axis.axhline(last, color=INK_COLOUR, linewidth=1.2, linestyle=DASH_PATTERN)
    for span in spans:
        if points := _shift_points(span, read_points(span.rows, OPTIMAL_CALLS_KEY)):
            y = smooth(np.array([value for _, value in points]), max(1, len(points) // 4))
            style: Any = {"color": MUTED_COLOUR, "linewidth": 1, "linestyle": (0, (1, 2))}
            axis.plot([x for x, _ in points], y, **style)


def _label_steps(axis: Axes, spans: Sequence[StageSpan], layout: ChartLayout) -> None:
    """Write numbers along the steps, and names below the stages drawn as points."""
    end = max((span.end for span in spans if span.rows), default=0)
    steps = [tick for tick in MaxNLocator(6, integer=True).tick_values(0, end) if 0 <= tick <= end]
    ticks = {float(tick): f"{tick:,.0f}" for tick in steps} if end else {}
    stages = [s for s in spans if s.rows]
    ticks = {t: n for t, n in ticks.items() if any(s.start <= t <= s.end for s in stages)}
    points = {(s.start + s.end) / 2: shorten(s.name, 12) for s in spans if not s.rows}
    axis.set_xticks([*points, *ticks], [*points.values(), *ticks.values()])
    if layout.rotation:
        for label in axis.get_xticklabels()[: len(points)]:
            label.set(rotation=layout.rotation, ha="right", rotation_mode="anchor")
    if end:
        axis.set_xlabel("steps of reinforcement learning", loc="right")
    axis.set_xlim(spans[0].start - 0.01 * spans[-1].end, spans[-1].end * 1.03)


def _draw_boundaries(
    axes: Sequence[Axes],
    spans: Sequence[StageSpan],
    slots: Mapping[str, int],
    layout: ChartLayout,
) -> None:
    """Draw a line at the start of each stage with steps, and its name above."""
    for span in (span for span in spans if span.rows):
        for axis in axes:
            axis.axvline(span.start, color=MUTED_COLOUR, linewidth=0.8)
        origin = (
            f", from {span.starts_from}" if span.starts_from and layout is DESKTOP_LAYOUT else ""
        )
        axes[0].annotate(
            shorten(span.name, 14) + origin,
            (span.start, 1),
            (4, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            color=pick_colour(slots[span.name]),
            fontweight="bold",
            annotation_clip=False,
        )
