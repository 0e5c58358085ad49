"""Answers that were given outside of rollouts, graded by the verdict of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fieldcraft.data.steps_io import as_trajectory
from fieldcraft.rewards.verdict import grade
from fieldcraft.types import Reward, Step, Task


@dataclass(frozen=True)
class Grader:
    """Grader of steps by `correct`, the reward that says which answers are right."""

    correct: Reward

    async def right(self, task: Task, steps: Sequence[Step]) -> bool | None:
        """Return whether the answer that steps end in is right; without an answer it is not, and
        None is for what nothing can grade. Raises UserError as `Rubric.score` does."""
        trajectory = as_trajectory(task, steps)
        if trajectory.answer is None:
            return False
        await grade(self.correct, [trajectory])
        return trajectory.right
