"""A reward for mistakes that the policy noticed and corrected."""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.types import CallOutcome, Reward, Trajectory


class RepairReward(StatelessReward):
    """r_repair * r_correct: 1 for a right answer whose rollout had a call fail and then one of the
    same tool succeed, and 0 for any other.

    With a weight it also pays for failing first, so keep it small beside that of the answer.

    Args:
        correct: r_correct; None stays None.
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
    """Return whether a call failed and a later one of the same tool did not."""
    broken: set[str] = set()
    for call in trajectory.calls:
        if call.outcome is CallOutcome.OK and call.tool in broken:
            return True
        if call.outcome in (CallOutcome.FAILED, CallOutcome.MALFORMED):
            broken.add(call.tool)
    return False
