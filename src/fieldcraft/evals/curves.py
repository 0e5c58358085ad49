"""Charts of a run's training: one per metric, with a panel for each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fieldcraft.evals.charts import (
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
from fieldcraft.evals.summary import STEP_METRICS

MetricsRows = Sequence[Row]
Points = list[tuple[float, float]]  # step, value

REWARD_KEY = "reward_mean"  # logged only by stages of reinforcement learning


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """A key of the metric rows and its drawing options. `supervised_only` omits stages with a
    reward, because a policy-gradient loss does not indicate progress. `heldout_key` is the key of
    the same measure on held-out questions, logged at some steps."""

    key: str
    title: str
    note: str
    maximum: float | None = None
    supervised_only: bool = False
    heldout_key: str = ""


METRIC_CURVES = (
    MetricCurve(REWARD_KEY, "Reward", "mean over rollouts"),
    MetricCurve(
        "em",
        "Exact match while training",
        "sampled rollouts",
        maximum=1.0,
        heldout_key=STEP_METRICS["em"],
    ),
    MetricCurve("calls_mean", "Tool calls", "per rollout", heldout_key=STEP_METRICS["calls_mean"]),
    MetricCurve(
        "fidelity/supports_answer",
        "Fidelity",
        "simulated searches that hold the fact",
        maximum=1.0,
    ),
    MetricCurve("needless_calls_mean", "Needless calls", "above the oracle, per rollout"),
    MetricCurve("missing_calls_mean", "Missing calls", "below the oracle, per rollout"),
    MetricCurve("offloading_rate", "Offloading", "known questions with a call", maximum=1.0),
    MetricCurve("policy_tokens_mean", "Length", "policy tokens per rollout"),
    MetricCurve("entropy", "Entropy", "nats per token"),
    MetricCurve("kl_ref", "KL", "to the reference model, nats per token"),
    MetricCurve("teacher_kl", "Reverse KL", "to the teacher, nats per token"),
    MetricCurve("clip_fraction", "Clipped", "share of the tokens whose ratio is clipped"),
    MetricCurve("correct_logp_mean", "Likelihood of correct answers", "log-probability per token"),
    MetricCurve("ratio_mean", "Policy ratio", "mean over tokens"),
    MetricCurve("loss", "Supervised loss", "nats per token, log scale", supervised_only=True),
    MetricCurve("grad_norm", "Gradient norm", "before clipping"),
    MetricCurve("tokens_per_second", "Throughput", "tokens per second"),
)


def draw_learning_curves(rows: Mapping[str, MetricsRows], slots: Mapping[str, int]) -> list[Chart]:
    """Draw one chart for every logged metric, with a panel for each stage that logged it."""
    charts = []
    for curve in METRIC_CURVES:
        logged_rows = {stage: part for stage, part in rows.items() if _read_curve(curve, part)}
        if logged_rows:
            charts.append(_draw_panels(logged_rows, curve, slots))
    return charts


def _read_curve(curve: MetricCurve, rows: MetricsRows) -> Points:
    if curve.supervised_only and has_rewards(rows):
        return []
    return read_points(rows, curve.key)


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
    rows: Mapping[str, MetricsRows], curve: MetricCurve, slots: Mapping[str, int]
) -> Chart:
    wide = len(rows) > 3
    figure = Figure(
        figsize=(CHART_INCHES[0] * (2 if wide else 1), CHART_INCHES[1]), layout="constrained"
    )
    axes = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
    series = []
    for axis, (stage, part) in zip(axes, rows.items(), strict=True):
        colour = pick_colour(slots[stage])
        points = _read_curve(curve, part)
        series.append(draw_line(axis, stage, points, MAX_POINTS // len(rows), curve.title, colour))
        if heldout := read_points(part, curve.heldout_key):
            series.append(draw_heldout(axis, f"{stage}, held out", heldout, curve.title, colour))
        axis.set_title(shorten(stage, 12 if len(rows) > 1 else 24), color=colour, fontsize=9.5)
        axis.xaxis.set_major_locator(
            MaxNLocator(2 if wide else 4, integer=True, steps=[1, 2, 5, 10])
        )
        axis.xaxis.set_major_formatter("{x:,.0f}")
    values = [y for part in rows.values() for _, y in _read_curve(curve, part)]
    if curve.supervised_only and min(values) > 0:
        set_log_scale(axes[0], min(values), max(values))
    elif min(values) >= 0:
        axes[0].set_ylim(0, 1.05 * (curve.maximum or max(values)) or 1.0)
    axes[0].set_xlabel("step", loc="left")
    return make_chart(figure, curve.title, curve.note, series, wide=wide)


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
