"""Charts of a run's training: one per metric, with a panel for each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fieldcraft.evaluation.charts import (
    CARD_COLOUR,
    CHART_INCHES,
    CHART_STYLE,
    MAX_POINTS,
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
