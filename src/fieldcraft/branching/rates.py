"""Success rates of continuations, and the difference between two kinds of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fieldcraft.evals.intervals import Interval, newcombe_interval, wilson_interval
from fieldcraft.evals.pairwise import fisher_test
from fieldcraft.types import Status, Trajectory


@dataclass(frozen=True, slots=True)
class Rate:
    """Rate of `right` of `n` samples. `left_out` counts those that broke off or could not be
    graded: they say nothing about the policy."""

    right: int
    n: int
    left_out: int = 0

    @property
    def share(self) -> float | None:
        return self.right / self.n if self.n else None

    @property
    def ci95(self) -> Interval:
        """Wilson's interval: given the state, samples are independent."""
        return wilson_interval(self.share or 0.0, self.n)

    def record(self) -> dict[str, Any]:
        return {
            "right": self.right,
            "n": self.n,
            "left_out": self.left_out,
            "share": self.share,
            "ci95": list(self.ci95),
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of one rate above another: Newcombe's interval and Fisher's exact test."""

    share: float | None
    ci95: Interval
    p_value: float

    def record(self) -> dict[str, Any]:
        return {"share": self.share, "ci95": list(self.ci95), "p_value": self.p_value}


def rate_of(samples: Iterable[Trajectory]) -> Rate:
    """Return the success rate of the samples."""
    seen = [None if t.status is Status.ERROR else t.right for t in samples]
    graded = [right for right in seen if right is not None]
    return Rate(sum(graded), len(graded), len(seen) - len(graded))


def difference(before: Rate, after: Rate) -> Difference:
    """Return the difference: how much more often `after` is right. Without samples nothing is
    known."""
    if before.share is None or after.share is None:
        return Difference(None, (-1.0, 1.0), 1.0)
    return Difference(
        after.share - before.share,
        newcombe_interval((after.right, after.n), (before.right, before.n)),
        fisher_test((after.right, after.n), (before.right, before.n)),
    )
