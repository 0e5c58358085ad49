"""Detection of collapse in reinforcement learning: the step, the symptom and the likely cause.

The result depends only on the rows of `metrics.jsonl`, so a run that was killed and resumed decides
like an uninterrupted one. A run has collapsed if its score has dropped permanently, or if its
gradients explode for many steps. A change of entropy, length or calls is no reason to stop, because
healthy runs change them too. These metrics only identify the cause: likelihoods of correct answers
often decay long before the score does (arXiv 2512.04220).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any, final

from fieldcraft.records.metrics import METRICS, CollapseSignal, Metric

_Metrics = Mapping[str, Any]

SCORE_WINDOW_STEPS = 10  # window of the running mean of the score
MIN_WINDOW_STEPS = 5  # steps of the first window
MIN_LOW_STEPS = 10  # steps for which the score stays low, or gradients high
MIN_BEST_SCORE = 0.1  # scores that never exceeded this cannot collapse
MIN_STANDARD_ERRORS = 6.0  # a drop exceeds this number of standard errors
NEAR_BEST_SHARE = 0.9  # share of the best score that counts as healthy
MAX_LEAD_STEPS = 20  # steps by which a cause may precede the drop
SMOOTHING_STEPS = 5  # window of the running mean of a signal
EXPLOSION_FACTOR = 100.0  # relative to the median norm so far; also 10 times the clip norm
STEPS_AFTER_CHECKPOINT = 3  # steps after a checkpoint that count towards its health


@dataclass(frozen=True, slots=True)
class SignalDeparture:
    """Metric that left its healthy range at a step; `range_edge` is the edge of that range,
    `extreme` the worst value in the window after the step."""

    metric: Metric
    signal: CollapseSignal
    step: int
    range_edge: float
    extreme: float


@dataclass(frozen=True, slots=True)
class CollapseReport:
    """Report of a collapse: step, symptom, and the signal that left its range first."""

    step: int
    symptom: str
    first_departure: SignalDeparture | None

    def format_message(self, stage: str, checkpoint_note: str) -> str:
        """Return the message for the user; `checkpoint_note` describes the available checkpoint."""
        if self.first_departure is None:
            cause, advice = "no other metric left its range earlier", "lower optim.lr"
        else:
            first, signal = self.first_departure, self.first_departure.signal
            cause = (
                f"likely cause: {first.metric.title.lower()} {signal.direction} from"
                f" {first.range_edge:.3g} to {first.extreme:.3g}, first seen at step {first.step}"
            )
            advice = signal.advice
        return (
            f"stage '{stage}' has collapsed at step {self.step}: {self.symptom}; {cause};"
            f" {checkpoint_note}; {advice}, and restart from there in a new folder"
            " (collapse_threshold: null disables this check)."
        )


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class CollapseDetector:
    """Detector of collapse.

    Args:
        score_key: metric that must not drop, `em` or `reward_mean`.
        threshold: share of its best value below which the score counts as dropped.
        max_grad_norm: norm at which gradients are clipped.
    """

    score_key: str
    threshold: float
    max_grad_norm: float

    def detect(self, rows: Sequence[_Metrics]) -> CollapseReport | None:
        """Return the report of a collapse as of the last row; None if the run has not collapsed."""
        means = self._means(rows)
        if not means:
            return None
        best = max(range(len(means)), key=means.__getitem__)
        lower_bound = min(
            self.threshold * means[best],
            means[best] - MIN_STANDARD_ERRORS * self._standard_error(rows),
        )
        down = all(mean < lower_bound for mean in means[-MIN_LOW_STEPS:])
        if means[best] > MIN_BEST_SCORE and down and len(means) - best > MIN_LOW_STEPS:
            near = [
                end
                for end, mean in enumerate(means, MIN_WINDOW_STEPS)
                if mean >= NEAR_BEST_SHARE * means[best]
            ]
            score_name = "exact match" if self.score_key == "em" else "the reward"
            symptom = (
                f"{score_name} has fallen from {means[best]:.3f} to {means[-1]:.3f} since step"
                f" {rows[near[-1] - 1]['step']}"
            )
            return CollapseReport(rows[-1]["step"], symptom, _find_first_departure(rows, near[-1]))
        return self._detect_explosion(rows)

    def find_healthiest_checkpoint(
        self, rows: Sequence[_Metrics], checkpoints: Sequence[int]
    ) -> int | None:
        """Return the healthiest of the checkpoints, each given as its number of completed steps.
        Its health is the lower of the scores just before and just after it; of equal ones the
        newest is returned. None if even the best one is in a collapse, or there are no scores."""
        scores = {done: self._health(rows, done) for done in checkpoints if 0 < done <= len(rows)}
        means = self._means(rows)
        if not scores or not means:
            return None
        best = max(sorted(scores, reverse=True), key=scores.__getitem__)
        return best if scores[best] >= self.threshold * max(means) else None

    def _health(self, rows: Sequence[_Metrics], done: int) -> float:
        before = fmean(self._scores(rows[max(done - SCORE_WINDOW_STEPS, 0) : done]))
        after = self._scores(rows[done : done + STEPS_AFTER_CHECKPOINT])
        return min(before, fmean(after)) if after else before

    def _scores(self, rows: Sequence[_Metrics]) -> list[float]:
        return [row[self.score_key] for row in rows]

    def _means(self, rows: Sequence[_Metrics]) -> list[float]:
        """Return the mean of the window that ends at each row, from row MIN_WINDOW_STEPS on."""
        scores = self._scores(rows)
        ends = range(MIN_WINDOW_STEPS, len(scores) + 1)
        return [fmean(scores[max(end - SCORE_WINDOW_STEPS, 0) : end]) for end in ends]

    def _standard_error(self, rows: Sequence[_Metrics]) -> float:
        """Return the standard error of the difference of two windows, estimated from differences of
        consecutive steps, which are insensitive to trends."""
        scores = self._scores(rows)
        squares = [(b - a) ** 2 / 2 for a, b in pairwise(scores)]
        return math.sqrt(fmean(squares) * 2 / SCORE_WINDOW_STEPS)

    def _detect_explosion(self, rows: Sequence[_Metrics]) -> CollapseReport | None:
        norms = [(i, row["grad_norm"]) for i, row in enumerate(rows) if "grad_norm" in row]
        earlier, last = norms[:-MIN_LOW_STEPS], norms[-MIN_LOW_STEPS:]
        if len(earlier) < SCORE_WINDOW_STEPS:
            return None
        usual, min_norm = median(norm for _, norm in earlier), min(norm for _, norm in last)
        if min_norm <= max(EXPLOSION_FACTOR * usual, 10 * self.max_grad_norm):
            return None
        symptom = (
            f"the gradient norm has been above {min_norm:.3g} for {MIN_LOW_STEPS} steps, compared"
            f" to {usual:.3g} before"
        )
        return CollapseReport(rows[-1]["step"], symptom, _find_first_departure(rows, last[0][0]))


def _find_first_departure(rows: Sequence[_Metrics], fall: int) -> SignalDeparture | None:
    """Return the first signal that left its range, where the range is taken up to MAX_LEAD_STEPS
    rows before row `fall`. If several left it in the same step, causes precede effects, which
    METRICS lists first."""
    start = max(fall - MAX_LEAD_STEPS, min(fall, MIN_WINDOW_STEPS))
    departures = []
    for metric, signal in [(m, s) for m in reversed(METRICS.values()) for s in m.signals]:
        smooth = _smooth([row.get(metric.key) for row in rows])
        healthy = [value for value in smooth[:start] if value is not None]
        for index in range(start, len(rows) if healthy else 0):
            value = smooth[index]
            if value is not None and signal.is_outside(value, healthy):
                window = [v for v in smooth[index : index + SCORE_WINDOW_STEPS] if v is not None]
                edge, extreme = signal.find_extreme(healthy), signal.find_extreme(window)
                step = rows[index]["step"]
                departures.append(SignalDeparture(metric, signal, step, edge, extreme))
                break
    return min(departures, key=lambda departure: departure.step, default=None)


def _smooth(values: Sequence[float | None]) -> list[float | None]:
    """Return the running means over the known ones of the last SMOOTHING_STEPS values."""
    known: list[float | None] = []
    for end in range(1, len(values) + 1):
        part = [value for value in values[max(end - SMOOTHING_STEPS, 0) : end] if value is not None]
        known.append(fmean(part) if part else None)
    return known
