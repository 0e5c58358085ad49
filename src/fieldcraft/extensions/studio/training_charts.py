"""Charts of a run's training: one per metric, and the course of the whole run.

The stages follow each other along the x axis. The course of the run shows exact match above and
calls below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from fieldcraft.extensions.studio.charts import (
    MAX_POINTS,
    Chart,
    Points,
    Row,
    Series,
    Span,
    downsample,
)
from fieldcraft.records.metrics import METRICS, Metric

MetricsRows = Sequence[Row]

REWARD_KEY = "reward_mean"  # logged only by stages of reinforcement learning
OPTIMAL_CALLS_KEY = "calls_optimal_mean"
STAGES_PER_RUN = 14  # evaluated stages that take the same width as all steps


def draw_learning_curves(rows: Mapping[str, MetricsRows], slots: Mapping[str, int]) -> list[Chart]:
    """Return the charts of the logged metrics, each with the stages that logged it."""
    charts = []
    for metric in (metric for metric in METRICS.values() if metric.chart):
        curves = {stage: _read_curve(metric, part) for stage, part in rows.items()}
        curves = {stage: points for stage, points in curves.items() if points}
        if curves:
            charts.append(_draw_metric(metric, rows, curves, slots))
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


def _draw_metric(
    metric: Metric,
    rows: Mapping[str, MetricsRows],
    curves: Mapping[str, Points],
    slots: Mapping[str, int],
) -> Chart:
    spans: list[Span] = []
    series = []
    for start, (stage, points) in enumerate(curves.items()):  # of the same width, as 1 of the axis
        span = Span(stage, start, start + 1, True, slots[stage], scale=points[-1][0] + 1)
        spans.append(span)
        thinned = downsample(points, MAX_POINTS // len(curves))
        series.append(Series(stage, span.slot, _place(thinned, span), "smooth"))
        if heldout := read_points(rows[stage], metric.heldout):
            places = _place(heldout, span)
            series.append(Series(f"{stage}, held out", span.slot, places, "dashed", "ring"))
    values = [value for points in curves.values() for _, value in points]
    is_log = metric.supervised and min(values) > 0
    top = None
    if not is_log and min(values) >= 0:
        top = 1.05 * (1.0 if metric.percent else max(values)) or 1.0
    return Chart(
        metric.title,
        metric.chart,
        "step",
        metric.title.lower(),
        series,
        spans,
        x_range=(0.0, max(0.5, spans[-1].end - 1 / spans[-1].scale)),  # to the last step
        log=is_log,
        top=top,
        wide=len(curves) > 3,
    )


def _place(points: Points, span: Span) -> Points:
    """Return the points of a stage along the x axis."""
    return [(span.start + step / span.scale, value) for step, value in points]


# -- course of the run ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageCourse:
    """A stage in the course of the run: its span, its metric rows (empty if it has no steps in the
    chart) and its evaluation result."""

    span: Span
    rows: MetricsRows
    entry: Row | None

    def read_evaluation(self, key: str) -> float | None:
        return self.entry.get(key) if self.entry else None


def lay_out_stages(
    curves: Mapping[str, MetricsRows],
    evals: Mapping[str, Row],
    order: Sequence[str],
    starts: Mapping[str, str | None],
    slots: Mapping[str, int],
) -> list[StageCourse]:
    """Return the stages in sequence. Steps of reinforcement learning are placed on the x axis and
    count from 0. Every other evaluated stage is a point before, between or after them, at equal
    distances. `starts` maps a stage to the stage that its settings name as its start."""
    rl_stages = {name for name in order if has_rewards(curves.get(name, ()))}
    total = sum(len(curves[name]) for name in rl_stages)
    point_width = max(1.0, total / STAGES_PER_RUN)
    visible = [name for name in order if name in rl_stages or name in evals]
    position = -point_width * next(
        (i for i, name in enumerate(visible) if name in rl_stages), len(visible)
    )
    stages: list[StageCourse] = []
    for name in visible:
        before = order[order.index(name) - 1] if order.index(name) else None
        start = starts.get(name)
        starts_from = start if start is not None and start != before else ""
        rows = curves[name] if name in rl_stages else ()
        end = position + (len(rows) if rows else point_width)
        span = Span(name, position, end, bool(rows), slots[name], starts_from=starts_from)
        stages.append(StageCourse(span, rows, evals.get(name)))
        position = end
    return stages


def draw_course(
    curves: Mapping[str, MetricsRows],
    evals: Mapping[str, Row],
    order: Sequence[str],
    starts: Mapping[str, str | None],
    slots: Mapping[str, int],
) -> list[Chart]:
    """Return the charts of exact match and of calls over the whole run; an empty list if there is
    nothing to show."""
    stages = lay_out_stages(curves, evals, order, starts, slots)
    if not any(
        read_points(stage.rows, "em") or stage.read_evaluation("em") is not None for stage in stages
    ):
        return []
    spans = [stage.span for stage in stages]
    margin = 0.02 * (spans[-1].end - spans[0].start)
    x_range = (spans[0].start - margin, spans[-1].end + margin)
    optimum = next(
        (v for s in reversed(stages) if (v := s.read_evaluation(OPTIMAL_CALLS_KEY)) is not None),
        None,
    )
    charts = []
    for key, measure in {"em": "exact match", "calls_mean": "calls per question"}.items():
        series = [part for stage in stages for part in _draw_stage(stage, key)]
        is_share = key == "em"
        if not is_share:
            series += _draw_training_optima(stages)
        highest = max((value for part in series for _, value in part.points), default=0)
        charts.append(
            Chart(
                f"Course of the run, {measure}",
                "",
                "step",
                measure,
                series,
                spans,
                percent=is_share,
                top=1.08 if is_share else 1.15 * max(highest, optimum or 0) or 1.0,
                x_range=x_range,
                optimum=None if is_share or optimum is None else ("y", optimum),
                group="course",
                wide=True,
            )
        )
    return charts


def _draw_stage(stage: StageCourse, key: str) -> list[Series]:
    """Return one measure of a stage: over its steps, and in the evaluation after them."""
    span, series = stage.span, []
    if points := read_points(stage.rows, key):
        thinned = _place(downsample(points), span)
        series.append(Series(f"{span.name}, training rollouts", span.slot, thinned, "smooth"))
    if points := read_points(stage.rows, METRICS[key].heldout):
        heldout = _place(points, span)
        series.append(Series(f"{span.name}, held out", span.slot, heldout, "dashed", "ring"))
    if (value := stage.read_evaluation(key)) is not None:
        x = span.end if span.has_steps else (span.start + span.end) / 2
        interval = stage.entry.get("em_ci95") if stage.entry and key == "em" else None
        whiskers = [] if interval is None else [interval]
        label = f"{span.name}, evaluation"
        series.append(
            Series(label, span.slot, [(x, value)], "", "dot", whiskers=whiskers, texts=True)
        )
    return series


def _draw_training_optima(stages: Sequence[StageCourse]) -> list[Series]:
    """Return the least number of calls for the rollouts of each stage."""
    return [
        Series(f"{stage.span.name}, least calls", None, _place(points, stage.span), "dotted")
        for stage in stages
        if (points := downsample(read_points(stage.rows, OPTIMAL_CALLS_KEY)))
    ]
