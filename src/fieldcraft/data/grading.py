"""Answers that were given outside of rollouts, graded by the verdict of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fieldcraft.data.steps_io import make_untokenised_trajectory
from fieldcraft.rewards.verdict import grade_verdicts
from fieldcraft.types import DemoStep, Reward, Task


@dataclass(frozen=True)
class Grader:
    """Grader of steps by `verdict_reward`, the reward that says which answers are right."""

    verdict_reward: Reward

    async def grade(self, task: Task, steps: Sequence[DemoStep]) -> bool | None:
        """Return whether the answer that steps end in is right; without an answer it is not, and
        None is for what nothing can grade. Raises UserError as `Rubric.score` does."""
        trajectory = make_untokenised_trajectory(task, steps)
        if trajectory.answer is None:
            return False
        await grade_verdicts(self.verdict_reward, [trajectory])
        return trajectory.is_correct
