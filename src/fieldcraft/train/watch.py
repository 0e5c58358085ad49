"""The watch over reinforcement learning: has a run collapsed, since when, and the likely cause.

All of it is a function of the rows of `metrics.jsonl`, so a run that was killed and resumed decides
as one that was not. Collapsed is a run whose score has fallen for good, or whose gradients explode
step after step; that entropy, length or calls change is no reason to stop, for healthy runs change
them too. They are what the cause is named from: likelihoods of right answers often decay long
before the score does (arXiv 2512.04220).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Literal, final

Row = Mapping[str, Any]

WINDOW = 10  # steps whose mean is the score of a moment
LEAST = 5  # steps that the first such mean takes
LOW_FOR = 10  # steps that the score has to stay down, or gradients up
FLOOR = 0.1  # a score that was never above has nothing to lose
NOISE = 6.0  # a fall is more than so many standard errors
NEAR = 0.9  # of its best: the score still stands
LEAD = 20  # steps by which a cause may come before the fall
SMOOTH = 5  # steps whose mean is the value of a signal
EXPLOSION = 100.0  # times the median gradient norm so far, and 10 times what is clipped
AFTER = 3  # steps after a checkpoint that speak about it


@dataclass(frozen=True, slots=True)
class Signal:
    """One direction in which a metric leaves the range that it had while all was well: it `rose`
    above `factor` times its highest value, or it `fell` below its lowest over `factor` (one that is
    negative: times `factor`), and by `least` at least. `advice` is what to change if it was the
    first.
    """

    key: str
    name: str
    moved: Literal["rose", "fell"]
    factor: float
    least: float
    advice: str

    def outside(self, value: float, healthy: Sequence[float]) -> bool:
        if self.moved == "rose":
            high = max(healthy)
            return value > max(high * self.factor, high + self.least)
        low = min(healthy)
        scaled = low / self.factor if low > 0 else low * self.factor
        return value < min(scaled, low - self.least)

    def worst(self, values: Sequence[float]) -> float:
        return max(values) if self.moved == "rose" else min(values)


_FEWER = "take fewer minibatches or epochs, or a lower optim.lr"
_FRESHER = "lower async.max_staleness or optim.lr, or set importance: sequence"
_HOLD = "hold the policy back with a lower optim.lr or kl_coef: 0.001"
_GRADIENT = "lower optim.lr or optim.clip_norm"
_RIGHT = "set kl_coef: 0.001, or llds_coef: 0.1 with minibatches: 2"
_EXPLORE = "set entropy_coef: 0.001, or a clip_high above clip_low such as 0.28"
_SHORTER = "set overlong_penalty: 0.5, or train_truncated: false"
_CALL = "reward right answers alone (em) until calls are back, or set kl_coef: 0.001"
_CALL_LESS = "lower budget.max_calls, or reward fewer calls with otc-grpo"
# Of signals that leave in the same step the earlier one here is named: causes before effects.
SIGNALS = (
    Signal("tool_failure_rate", "failed tool calls", "rose", 2.0, 0.3, "check the search server"),
    Signal(
        "sampler_gap", "gap between sampler and trainer", "rose", 3, 0.05, "set importance_cap: 2"
    ),
    Signal("log_ratio_abs", "log-ratio to the sampler", "rose", 3, 0.1, _FRESHER),
    Signal("ratio", "policy ratio", "rose", 1.0, 0.1, _FEWER),
    Signal("ratio", "policy ratio", "fell", 1.1, 0.1, _FEWER),
    Signal("grad_norm", "gradient norm", "rose", 5.0, 0.5, _GRADIENT),
    Signal("correct_logp_mean", "log-probability of right answers", "fell", 1.5, 0.02, _RIGHT),
    Signal("entropy", "entropy", "rose", 2.0, 0.05, _HOLD),
    Signal("entropy", "entropy", "fell", 5.0, 0.0, _EXPLORE),
    Signal("policy_tokens_mean", "length in policy tokens", "rose", 1.5, 1.0, _SHORTER),
    Signal("policy_tokens_mean", "length in policy tokens", "fell", 2.0, 1.0, _HOLD),
    Signal("calls_mean", "number of calls", "rose", 1.5, 0.2, _CALL_LESS),
    Signal("calls_mean", "number of calls", "fell", 2.0, 0.2, _CALL),
)


@dataclass(frozen=True, slots=True)
class Departure:
    """A signal that left its range at a step; `before` is the edge of that range, `then` the worst
    value of the window after it."""

    signal: Signal
    step: int
    before: float
    then: float


@dataclass(frozen=True, slots=True)
class Collapse:
    """A run that has collapsed: at which step, by which fact, and what left its range first."""

    step: int
    fact: str
    first: Departure | None

    def sentence(self, stage: str, kept: str) -> str:
        """Return the sentence that the user reads; `kept` says what is left from before."""
        if self.first is None:
            cause, advice = "no other metric left its range before", "lower optim.lr"
        else:
            signal = self.first.signal
            cause = (
                f"likely cause: {signal.name} {signal.moved} from {self.first.before:.3g} to"
                f" {self.first.then:.3g}, first seen at step {self.first.step}"
            )
            advice = signal.advice
        return (
            f"stage '{stage}' has collapsed at step {self.step}: {self.fact}; {cause}; {kept};"
            f" {advice}, and start anew from there in another folder (collapse_share: null switches"
            " this watch off)."
        )


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """The definition of a collapse.

    Args:
        score: the metric that must not fall, `em` or `reward_mean`.
        share: of its best value, below which the score has to stay to be called fallen.
        clip_norm: at which gradients are clipped.
    """

    score: str
    share: float
    clip_norm: float

    def collapse(self, rows: Sequence[Row]) -> Collapse | None:
        """Return the collapse by the last row; None while there is nothing to stop for."""
        means = self._means(rows)
        if not means:
            return None
        best = max(range(len(means)), key=means.__getitem__)
        bar = min(self.share * means[best], means[best] - NOISE * self._error(rows))
        down = all(mean < bar for mean in means[-LOW_FOR:])
        if means[best] > FLOOR and down and len(means) - best > LOW_FOR:
            near = [end for end, mean in enumerate(means, LEAST) if mean >= NEAR * means[best]]
            named = "exact match" if self.score == "em" else "the reward"
            fact = (
                f"{named} has fallen from {means[best]:.3f} to {means[-1]:.3f} since step"
                f" {rows[near[-1] - 1]['step']}"
            )
            return Collapse(rows[-1]["step"], fact, _first(rows, near[-1]))
        return self._explosion(rows)

    def best(self, rows: Sequence[Row], checkpoints: Sequence[int]) -> int | None:
        """Return the healthiest of the checkpoints, each the number of steps behind it: the one
        with the best score just before it and just after it, whichever is worse; of equals the
        newest. None where even that one is in a collapse, or nothing is known of any."""
        scores = {done: self._health(rows, done) for done in checkpoints if 0 < done <= len(rows)}
        means = self._means(rows)
        if not scores or not means:
            return None
        best = max(sorted(scores, reverse=True), key=scores.__getitem__)
        return best if scores[best] >= self.share * max(means) else None

    def _health(self, rows: Sequence[Row], done: int) -> float:
        before = fmean(self._scores(rows[max(done - WINDOW, 0) : done]))
        after = self._scores(rows[done : done + AFTER])
        return min(before, fmean(after)) if after else before

    def _scores(self, rows: Sequence[Row]) -> list[float]:
        return [row[self.score] for row in rows]

    def _means(self, rows: Sequence[Row]) -> list[float]:
        """Return the means of the windows that end with each row from the LEAST-th on."""
        scores = self._scores(rows)
        ends = range(LEAST, len(scores) + 1)
        return [fmean(scores[max(end - WINDOW, 0) : end]) for end in ends]

    def _error(self, rows: Sequence[Row]) -> float:
        """Return the standard error of the difference of two windows, from the differences of
        neighbouring steps: those know nothing of trends."""
        scores = self._scores(rows)
        squares = [(b - a) ** 2 / 2 for a, b in pairwise(scores)]
        return math.sqrt(fmean(squares) * 2 / WINDOW)

    def _explosion(self, rows: Sequence[Row]) -> Collapse | None:
        norms = [(i, row["grad_norm"]) for i, row in enumerate(rows) if "grad_norm" in row]
        earlier, last = norms[:-LOW_FOR], norms[-LOW_FOR:]
        if len(earlier) < WINDOW:
            return None
        usual, least = median(norm for _, norm in earlier), min(norm for _, norm in last)
        if least <= max(EXPLOSION * usual, 10 * self.clip_norm):
            return None
        fact = (
            f"the gradient norm has been above {least:.3g} for {LOW_FOR} steps, where {usual:.3g}"
            " was usual"
        )
        return Collapse(rows[-1]["step"], fact, _first(rows, last[0][0]))


def _first(rows: Sequence[Row], fall: int) -> Departure | None:
    """Return the signal that was the first to leave the range that it had until LEAD rows before
    row `fall`."""
    start = max(fall - LEAD, min(fall, LEAST))
    found = []
    for signal in SIGNALS:
        smooth = _smooth([row.get(signal.key) for row in rows])
        healthy = [value for value in smooth[:start] if value is not None]
        for at in range(start, len(rows) if healthy else 0):
            value = smooth[at]
            if value is not None and signal.outside(value, healthy):
                then = [v for v in smooth[at : at + WINDOW] if v is not None]
                edge, worst = signal.worst(healthy), signal.worst(then)
                found.append(Departure(signal, rows[at]["step"], edge, worst))
                break
    return min(found, key=lambda departure: departure.step, default=None)


def _smooth(values: Sequence[float | None]) -> list[float | None]:
    """Return the running means over the last SMOOTH values that are known."""
    known: list[float | None] = []
    for end in range(1, len(values) + 1):
        part = [value for value in values[max(end - SMOOTH, 0) : end] if value is not None]
        known.append(fmean(part) if part else None)
    return known
