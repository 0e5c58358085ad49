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
from typing import Any, Literal, final

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
class CollapseSignal:
    """One direction in which a metric leaves its healthy range: it `rose` above `factor` times its
    maximum, or it `fell` below its minimum divided by `factor` (times `factor` if negative), and by
    at least `min_change`. `advice` is the remedy if this signal was the first.
    """

    key: str
    name: str
    direction: Literal["rose", "fell"]
    factor: float
    min_change: float
    advice: str

    def is_outside(self, value: float, healthy: Sequence[float]) -> bool:
        if self.direction == "rose":
            high = max(healthy)
            return value > max(high * self.factor, high + self.min_change)
        low = min(healthy)
        scaled = low / self.factor if low > 0 else low * self.factor
        return value < min(scaled, low - self.min_change)

    def find_extreme(self, values: Sequence[float]) -> float:
        return max(values) if self.direction == "rose" else min(values)


_FEWER = "use fewer minibatches or epochs, or a lower optim.lr"
_FRESHER = "lower async.max_staleness or optim.lr, or set sampler_is_level: sequence"
_HOLD = "constrain the policy with a lower optim.lr or kl_coef: 0.001"
_GRADIENT = "lower optim.lr or optim.max_grad_norm"
_CORRECT = "set kl_coef: 0.001, or llds_coef: 0.1 with minibatches: 2"
_EXPLORE = "set entropy_coef: 0.001, or a clip_high above clip_low such as 0.28"
_SHORTER = "set overlong_penalty: 0.5, or train_truncated: false"
_CALL = "reward only correct answers (em) until calls recover, or set kl_coef: 0.001"
_CALL_LESS = "lower budget.max_calls, or reward fewer calls with otc-grpo"
# If several signals depart in the same step, the first in this order is reported: causes before
# effects.
SIGNALS = (
    CollapseSignal(
        "tool_failure_rate", "failed tool calls", "rose", 2.0, 0.3, "check the search server"
    ),
    CollapseSignal(
        "sampler_logp_diff",
        "gap between sampler and trainer",
        "rose",
        3,
        0.05,
        "set sampler_is_cap: 2",
    ),
    CollapseSignal("log_ratio_abs", "log-ratio to the sampler", "rose", 3, 0.1, _FRESHER),
    CollapseSignal("ratio_mean", "policy ratio", "rose", 1.0, 0.1, _FEWER),
    CollapseSignal("ratio_mean", "policy ratio", "fell", 1.1, 0.1, _FEWER),
    CollapseSignal("grad_norm", "gradient norm", "rose", 5.0, 0.5, _GRADIENT),
    CollapseSignal(
        "correct_logp_mean", "log-probability of correct answers", "fell", 1.5, 0.02, _CORRECT
    ),
    CollapseSignal("entropy", "entropy", "rose", 2.0, 0.05, _HOLD),
    CollapseSignal("entropy", "entropy", "fell", 5.0, 0.0, _EXPLORE),
    CollapseSignal("policy_tokens_mean", "length in policy tokens", "rose", 1.5, 1.0, _SHORTER),
    CollapseSignal("policy_tokens_mean", "length in policy tokens", "fell", 2.0, 1.0, _HOLD),
    CollapseSignal("calls_mean", "number of calls", "rose", 1.5, 0.2, _CALL_LESS),
    CollapseSignal("calls_mean", "number of calls", "fell", 2.0, 0.2, _CALL),
)


@dataclass(frozen=True, slots=True)
class SignalDeparture:
    """Signal that left its healthy range at a step; `range_edge` is the edge of that range,
    `extreme` the worst value in the window after the step."""

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
            signal = self.first_departure.signal
            cause = (
                f"likely cause: {signal.name} {signal.direction} from "
                f"{self.first_departure.range_edge:.3g} to"
                f" {self.first_departure.extreme:.3g}, first seen at step "
                f"{self.first_departure.step}"
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
    rows before row `fall`."""
    start = max(fall - MAX_LEAD_STEPS, min(fall, MIN_WINDOW_STEPS))
    departures = []
    for signal in SIGNALS:
        smooth = _smooth([row.get(signal.key) for row in rows])
        healthy = [value for value in smooth[:start] if value is not None]
        for index in range(start, len(rows) if healthy else 0):
            value = smooth[index]
            if value is not None and signal.is_outside(value, healthy):
                window = [v for v in smooth[index : index + SCORE_WINDOW_STEPS] if v is not None]
                edge, extreme = signal.find_extreme(healthy), signal.find_extreme(window)
                departures.append(SignalDeparture(signal, rows[index]["step"], edge, extreme))
                break
    return min(departures, key=lambda departure: departure.step, default=None)


def _smooth(values: Sequence[float | None]) -> list[float | None]:
    """Return the running means over the known ones of the last SMOOTHING_STEPS values."""
    known: list[float | None] = []
    for end in range(1, len(values) + 1):
        part = [value for value in values[max(end - SMOOTHING_STEPS, 0) : end] if value is not None]
        known.append(fmean(part) if part else None)
    return known
