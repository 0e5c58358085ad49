"""DAPO's soft penalty for long rollouts."""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.records.chains import count_max_chain_tokens
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.types import Trajectory


class SoftOverlongPenalty(StatelessReward):
    """DAPO's soft overlong punishment (arXiv 2503.14476, equation 13), for rollouts with
    observations.

    The score is 0 up to `limit` - `cache` tokens of the longest chain, then decreases linearly to
    -1 at `limit` and beyond. Tokens are counted like `budget.max_context_tokens`, including the
    prompt and observations. The tokens of the policy alone could not reach the limit at which the
    rollout is truncated.
    """

    name = "overlong"

    def __init__(self, limit: int, cache: int) -> None:
        self.limit = limit
        self.cache = cache

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [self._score(trajectory) for trajectory in group]

    def _score(self, trajectory: Trajectory) -> float:
        excess = count_max_chain_tokens(trajectory) - (self.limit - self.cache)
        return min(max(-excess / self.cache, -1.0), 0.0)
