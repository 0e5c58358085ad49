"""Reward for mistakes that the policy noticed and corrected."""

from __future__ import annotations

from collections.abc import Sequence

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
