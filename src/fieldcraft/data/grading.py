"""Grading of answers that were given outside of rollouts, by the verdict reward of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fieldcraft.data.steps_io import make_untokenised_trajectory
from fieldcraft.rewards.verdict import grade_verdicts
from fieldcraft.types import DemoStep, Reward, Task


@dataclass(frozen=True)
class Grader:
    """Grader of steps by `verdict_reward`, the reward that decides whether answers are correct."""

    verdict_reward: Reward

    async def grade(self, task: Task, steps: Sequence[DemoStep]) -> bool | None:
        """Return whether the final answer of the steps is correct; False without an answer, None if
        it cannot be graded. Raises UserError as `Rubric.score` does."""
        trajectory = make_untokenised_trajectory(task, steps)
        if trajectory.answer is None:
            return False
        await grade_verdicts(self.verdict_reward, [trajectory])
        return trajectory.is_correct
