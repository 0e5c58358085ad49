"""DAPO's soft penalty for long rollouts."""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.types import Author, Trajectory


class SoftOverlong(StatelessReward):
    """DAPO's soft overlong punishment (arXiv 2503.14476, equation 13).

    0 up to `limit` - `cache` tokens, then falling in a straight line to -1 at `limit` and beyond.
    Only what the policy wrote is counted: a long observation is not its fault.
    """

    name = "overlong"

    def __init__(self, limit: int, cache: int) -> None:
        self.limit = limit
        self.cache = cache

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [self._score(trajectory) for trajectory in group]

    def _score(self, trajectory: Trajectory) -> float:
        written = [s for s in trajectory.segments if s.author is Author.POLICY]
        over = sum(len(s.ids) for s in written) - (self.limit - self.cache)
        return -min(max(over / self.cache, 0.0), 1.0)
