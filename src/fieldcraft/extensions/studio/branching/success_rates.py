"""Success rates of continuations, and the difference between two rates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fieldcraft.evaluation.comparison import fisher_test
from fieldcraft.evaluation.intervals import Interval, newcombe_interval, wilson_interval
from fieldcraft.types import Status, Trajectory


@dataclass(frozen=True, slots=True)
class SuccessRate:
    """Rate of `correct` out of `n` samples. `excluded` counts interrupted and ungraded ones, which
    provide no information about the policy."""

    correct: int
    n: int
    excluded: int = 0

    @property
    def value(self) -> float | None:
        return self.correct / self.n if self.n else None

    @property
    def ci95(self) -> Interval:
        """Wilson's interval; samples are independent given the state."""
        return wilson_interval(self.value or 0.0, self.n)

    def to_record(self) -> dict[str, Any]:
        return {
            "right": self.correct,
            "n": self.n,
            "left_out": self.excluded,
            "share": self.value,
            "ci95": list(self.ci95),
        }


@dataclass(frozen=True, slots=True)
class RateDifference:
    """Difference of two rates, with Newcombe's interval and Fisher's exact test."""

    value: float | None
    ci95: Interval
    p_value: float

    def to_record(self) -> dict[str, Any]:
        return {"share": self.value, "ci95": list(self.ci95), "p_value": self.p_value}


def compute_success_rate(samples: Iterable[Trajectory]) -> SuccessRate:
    """Return the success rate of the samples."""
    outcomes = [None if t.status is Status.ERROR else t.is_correct for t in samples]
    graded = [correct for correct in outcomes if correct is not None]
    return SuccessRate(sum(graded), len(graded), len(outcomes) - len(graded))


def compare_rates(before: SuccessRate, after: SuccessRate) -> RateDifference:
    """Return the increase of the success rate from `before` to `after`. Without samples it is
    unknown."""
    if before.value is None or after.value is None:
        return RateDifference(None, (-1.0, 1.0), 1.0)
    return RateDifference(
        after.value - before.value,
        newcombe_interval((after.correct, after.n), (before.correct, before.n)),
        fisher_test((after.correct, after.n), (before.correct, before.n)),
    )
