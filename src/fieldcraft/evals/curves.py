"""The charts of a run's training: one of every metric, and the course of the whole run."""

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

from fieldcraft.evals.charts import (
    CARD,
    DASHES,
    INK,
    MOST_POINTS,
    MUTED,
    SIZE,
    STYLE,
    Chart,
    Row,
    Series,
    drawn,
    scale_by_logarithm,
    short,
    smooth,
    stage_colour,
    thinned,
)

Rows = Sequence[Row]
Points = list[tuple[float, float]]  # step, value

OPTIMUM = "calls_optimal_mean"
REWARD = "reward_mean"  # only stages of reinforcement learning log one


@dataclass(frozen=True, slots=True)
class Curve:
    """A key of the metric rows and how to draw it. `supervised` leaves out stages with a reward:
    the loss of a policy gradient says nothing about progress. `heldout` is the key of the same
    measured on held-out questions, at some steps."""

    key: str
    title: str
    note: str
    top: float | None = None
    supervised: bool = False
    heldout: str = ""


CURVES = (
    Curve(REWARD, "Reward", "mean over rollouts"),
    Curve("em", "Exact match while training", "sampled rollouts", top=1.0, heldout="heldout_em"),
    Curve("calls_mean", "Tool calls", "per rollout", heldout="heldout_calls"),
    Curve("fidelity/holds", "Fidelity", "simulated searches that hold the fact", top=1.0),
    Curve("needless_calls_mean", "Needless calls", "above the oracle, per rollout"),
    Curve("missing_calls_mean", "Missing calls", "below the oracle, per rollout"),
    Curve("offloading_rate", "Offloading", "known questions with a call", top=1.0),
    Curve("policy_tokens_mean", "Length", "policy tokens per rollout"),
    Curve("entropy", "Entropy", "nats per token"),
    Curve("kl_ref", "KL", "to the reference model, nats per token"),
    Curve("teacher_kl", "Reverse KL", "to the teacher, nats per token"),
    Curve("clip_fraction", "Clipped", "share of the tokens whose ratio is clipped"),
    Curve("correct_logp_mean", "Likelihood of right answers", "log-probability per token"),
    Curve("ratio", "Policy ratio", "mean over tokens"),
    Curve("loss", "Supervised loss", "nats per token, log scale", supervised=True),
    Curve("grad_norm", "Gradient norm", "before clipping"),
    Curve("tokens_per_second", "Throughput", "tokens per second"),
)


def learning_curves(rows: Mapping[str, Rows], slots: Mapping[str, int]) -> list[Chart]:
    """Draw one chart for every metric that was logged, with a panel for each stage that logged
    it."""
    charts = []
    for curve in CURVES:
        shown = {stage: part for stage, part in rows.items() if _points(curve, part)}
        if shown:
            charts.append(_panels(shown, curve, slots))
    return charts


def _points(curve: Curve, rows: Rows) -> Points:
    if curve.supervised and learns_by_reward(rows):
        return []
    return logged(rows, curve.key)


def learns_by_reward(rows: Rows) -> bool:
    """Return whether rows are those of reinforcement learning."""
    return any(REWARD in row for row in rows)


def logged(rows: Rows, key: str) -> Points:
    """Return (step, value) of the rows that have a finite number at `key`."""
    return [
        (float(row.get("step", index)), float(row[key]))
        for index, row in enumerate(rows)
        if row.get(key) is not None and isfinite(row[key])
    ]


@mpl.rc_context(STYLE)
def _panels(rows: Mapping[str, Rows], curve: Curve, slots: Mapping[str, int]) -> Chart:
    wide = len(rows) > 3
    figure = Figure(figsize=(SIZE[0] * (2 if wide else 1), SIZE[1]), layout="constrained")
    axes = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
    found = []
    for axis, (stage, part) in zip(axes, rows.items(), strict=True):
        colour = stage_colour(slots[stage])
        points = _points(curve, part)
        found.append(_line(axis, stage, points, MOST_POINTS // len(rows), curve.title, colour))
        if heldout := logged(part, curve.heldout):
            found.append(_heldout(axis, f"{stage}, held out", heldout, curve.title, colour))
        axis.set_title(short(stage, 12 if len(rows) > 1 else 24), color=colour, fontsize=9.5)
        axis.xaxis.set_major_locator(
            MaxNLocator(2 if wide else 4, integer=True, steps=[1, 2, 5, 10])
        )
        axis.xaxis.set_major_formatter("{x:,.0f}")
    values = [y for part in rows.values() for _, y in _points(curve, part)]
    if curve.supervised and min(values) > 0:
        scale_by_logarithm(axes[0], min(values), max(values))
    elif min(values) >= 0:
        axes[0].set_ylim(0, 1.05 * (curve.top or max(values)) or 1.0)
    axes[0].set_xlabel("step", loc="left")
    return drawn(figure, curve.title, curve.note, found, wide=wide)


def _line(axis: Axes, name: str, points: Points, most: int, label: str, colour: str) -> Series:
    """Draw a thin line and, where it is long enough, its running mean in bold."""
    x, y = (thinned([point[i] for point in points], most) for i in (0, 1))
    window = max(1, len(y) // 12)
    axis.plot(x, y, color=colour, alpha=0.35 if window > 1 else 1, linewidth=1.2)
    if window > 1:
        axis.plot(x, smooth(y, window), color=colour, linewidth=1.8)
    elif len(y) == 1:
        axis.plot(x, y, "o", color=colour, markersize=4)
    return _values(axis, name, list(zip(x.tolist(), y.tolist(), strict=True)), label)


def _heldout(axis: Axes, name: str, points: Points, label: str, colour: str) -> Series:
    x, y = [step for step, _ in points], [value for _, value in points]
    axis.plot(x, y, color=colour, linewidth=0.9, linestyle=(0, (2, 2)))
    axis.plot(x, y, "o", color=colour, markerfacecolor=CARD, markersize=5, markeredgewidth=1.6)
    return _values(axis, name, points, label)


def _values(axis: Axes, name: str, points: Points, label: str) -> Series:
    return Series(axis, name, "step", label.lower(), points, points)


# -- the course of the run -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """A size of the same picture in inches, and how many evaluated points beside each other would
    be as wide as all steps."""

    size: tuple[float, float]
    points: int
    rotation: int  # of the names below points


DESKTOP, PHONE = Layout((11.6, 4.6), 14, 0), Layout((4.6, 5.2), 7, 60)
KEYS = {
    "sampled": "rollouts while training, running mean",
    "heldout": "held-out questions while training",
    "evaluated": "evaluation after the stage",
    "optimum": "least calls that suffice, evaluation",
    "optimum-training": "the same of the rollouts",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A stage in the picture of the course: from where to where it is along the axis, what it
    logged (nothing, where it has no steps in the picture) and what its evaluation found."""

    name: str
    start: float
    end: float
    rows: Rows
    entry: Row | None
    after: str = ""  # the stage that it starts from, where that is not the one before it


def course_spans(
    curves: Mapping[str, Rows],
    evals: Mapping[str, Row],
    order: Sequence[str],
    starts: Mapping[str, str | None],
    layout: Layout,
) -> list[Span]:
    """Return the spans of the stages, one after the other. The steps of reinforcement learning are
    along the axis and count from 0; every other evaluated stage is a point before, in between or
    behind, an equal distance from its neighbours. `starts` has the stage that a stage names as its
    start."""
    learned = {name for name in order if learns_by_reward(curves.get(name, ()))}
    total = sum(len(curves[name]) for name in learned)
    room = max(1.0, total / layout.points)
    shown = [name for name in order if name in learned or name in evals]
    place = -room * next((i for i, name in enumerate(shown) if name in learned), len(shown))
    spans: list[Span] = []
    for name in shown:
        before = order[order.index(name) - 1] if order.index(name) else None
        start = starts.get(name)
        after = start if start is not None and start != before else ""
        rows = curves[name] if name in learned else ()
        width = len(rows) if rows else room
        spans.append(Span(name, place, place + width, rows, evals.get(name), after))
        place += width
    return spans


def course(
    curves: Mapping[str, Rows],
    evals: Mapping[str, Row],
    order: Sequence[str],
    starts: Mapping[str, str | None],
    slots: Mapping[str, int],
) -> list[Chart]:
    """Draw exact match above and calls below, over the whole run, for a wide screen and for a
    narrow one; nothing, if there is nothing to show."""
    drawings = []
    for layout in (DESKTOP, PHONE):
        spans = course_spans(curves, evals, order, starts, layout)
        if any(logged(span.rows, "em") or _evaluated(span, "em") is not None for span in spans):
            drawings.append(_course(spans, slots, layout))
    return drawings


def course_keys(
    curves: Mapping[str, Rows], evals: Mapping[str, Row], order: Sequence[str]
) -> dict[str, str]:
    """Return the marks that the picture has, each with its meaning."""
    spans = course_spans(curves, evals, order, {}, DESKTOP)
    has = {
        "sampled": any(span.rows for span in spans),
        "heldout": any(logged(span.rows, "heldout_em") for span in spans),
        "evaluated": any(span.entry for span in spans),
        "optimum": any(_evaluated(span, OPTIMUM) is not None for span in spans),
        "optimum-training": any(logged(span.rows, OPTIMUM) for span in spans),
    }
    return {key: text for key, text in KEYS.items() if has[key]}


@mpl.rc_context(STYLE)
def _course(spans: Sequence[Span], slots: Mapping[str, int], layout: Layout) -> Chart:
    figure = Figure(figsize=layout.size, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    found: list[Series] = []
    for span in spans:
        colour = stage_colour(slots[span.name])
        found += _of_stage(above, span, "em", "exact match", colour)
        found += _of_stage(below, span, "calls_mean", "calls per question", colour)
    _optimum(below, spans)
    above.set(ylabel="exact match", ylim=(0, 1.08), yticks=[0, 0.25, 0.5, 0.75, 1])
    above.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    below.set(ylabel="calls per question", ylim=(0, 1.15 * below.get_ylim()[1]))
    below.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    _along(below, spans, layout)
    _boundaries((above, below), spans, slots, layout)
    return drawn(figure, "Course of the run", "", found)


def _of_stage(axis: Axes, span: Span, key: str, label: str, colour: str) -> Iterator[Series]:
    """Draw one measure of a stage: over its steps, and in the evaluation after them."""
    if points := logged(span.rows, key):
        series = _line(axis, span.name, _from(span, points), MOST_POINTS, label, colour)
        yield _counted(series, span, "training rollouts")
    heldout = {"em": "heldout_em", "calls_mean": "heldout_calls"}[key]
    if points := logged(span.rows, heldout):
        series = _heldout(axis, span.name, _from(span, points), label, colour)
        yield _counted(series, span, "held out")
    if (value := _evaluated(span, key)) is not None:
        yield _evaluation(axis, span, key, value, label, colour)


def _evaluation(axis: Axes, span: Span, key: str, value: float, label: str, colour: str) -> Series:
    """Draw a point with its value written beside its interval."""
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
        bbox={"facecolor": CARD, "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
    )
    return Series(axis, "evaluation", "stage", label, [(x, value)], [(span.name, value)])


def _evaluated(span: Span, key: str) -> float | None:
    return span.entry.get(key) if span.entry else None


def _from(span: Span, points: Points) -> Points:
    """Return the points with steps counted from 0 in the stage, as they are along the axis."""
    return [(span.start + step, value) for step, value in points]


def _counted(series: Series, span: Span, what: str) -> Series:
    """Return the series with the steps as the stage counts them, which a reader is told."""
    values = [(round(x - span.start, 2), y) for x, y in series.at]
    return Series(series.axis, f"{span.name}, {what}", "step", series.y, series.at, values)


def _optimum(axis: Axes, spans: Sequence[Span]) -> None:
    """Draw the least calls for the evaluation, along the whole axis, and for the rollouts of a
    step."""
    found = [_evaluated(span, OPTIMUM) for span in spans]
    best = next((value for value in reversed(found) if value is not None), None)
    if best is not None:
        axis.axhline(best, color=INK, linewidth=1.2, linestyle=DASHES)
    for span in spans:
        if points := _from(span, logged(span.rows, OPTIMUM)):
            y = smooth(np.array([value for _, value in points]), max(1, len(points) // 4))
            style: Any = {"color": MUTED, "linewidth": 1, "linestyle": (0, (1, 2))}
            axis.plot([x for x, _ in points], y, **style)


def _along(axis: Axes, spans: Sequence[Span], layout: Layout) -> None:
    """Write numbers along the steps, and names below the stages that are points."""
    end = max((span.end for span in spans if span.rows), default=0)
    steps = [tick for tick in MaxNLocator(6, integer=True).tick_values(0, end) if 0 <= tick <= end]
    ticks = {float(tick): f"{tick:,.0f}" for tick in steps} if end else {}
    inside = [s for s in spans if s.rows]
    ticks = {t: n for t, n in ticks.items() if any(s.start <= t <= s.end for s in inside)}
    points = {(s.start + s.end) / 2: short(s.name, 12) for s in spans if not s.rows}
    axis.set_xticks([*points, *ticks], [*points.values(), *ticks.values()])
    if layout.rotation:
        for label in axis.get_xticklabels()[: len(points)]:
            label.set(rotation=layout.rotation, ha="right", rotation_mode="anchor")
    if end:
        axis.set_xlabel("steps of reinforcement learning", loc="right")
    axis.set_xlim(spans[0].start - 0.01 * spans[-1].end, spans[-1].end * 1.03)


def _boundaries(
    axes: Sequence[Axes],
    spans: Sequence[Span],
    slots: Mapping[str, int],
    layout: Layout,
) -> None:
    """Draw a line where a stage with steps begins, and write its name above."""
    for span in (span for span in spans if span.rows):
        for axis in axes:
            axis.axvline(span.start, color=MUTED, linewidth=0.8)
        after = f", from {span.after}" if span.after and layout is DESKTOP else ""
        axes[0].annotate(
            short(span.name, 14) + after,
            (span.start, 1),
            (4, 3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            color=stage_colour(slots[span.name]),
            fontweight="bold",
            annotation_clip=False,
        )
