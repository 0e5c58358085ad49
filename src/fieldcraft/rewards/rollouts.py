"""Rewards for properties of a rollout: its repairs, its length, and its environment's own score."""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.config.choices import ENVIRONMENT_REWARD
from fieldcraft.records.chains import count_max_chain_tokens
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.types import CallOutcome, Reward, Trajectory


class RepairReward(StatelessReward):
    """r_repair * r_correct: 1 for a correct answer of a rollout in which a call failed and a later
    call of the same tool succeeded, else 0.

    With a weight, it also rewards failing first, so the weight must be small relative to that of
    the answer.

    Args:
        correct: r_correct; a score of None stays None.
    """

    name = "repair"

    def __init__(self, correct: Reward) -> None:
        self.correct = correct

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [
            None if score is None else score * has_repair(trajectory)
            for trajectory, score in zip(group, self.correct(group), strict=True)
        ]


def has_repair(trajectory: Trajectory) -> bool:
    """Return whether a call failed and a later call of the same tool succeeded."""
    broken: set[str] = set()
    for call in trajectory.calls:
        if call.outcome is CallOutcome.OK and call.tool in broken:
            return True
        if call.outcome in (CallOutcome.FAILED, CallOutcome.MALFORMED):
            broken.add(call.tool)
    return False


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


class EnvironmentReward(StatelessReward):
    """Reward that the environment stored in `Trajectory.rewards`; None if it stored none."""

    name = ENVIRONMENT_REWARD

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [trajectory.rewards.get(ENVIRONMENT_REWARD) for trajectory in group]
