"""The verdict: whether an answer is right, by the reward that a recipe names as `correct`.

Everything that asks whether an answer is right asks here: rollouts by a rubric, and answers outside
of rollouts, such as those of demonstrations and teachers, by `grade`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fieldcraft.config.names import AUTO
from fieldcraft.rewards.answers import compared
from fieldcraft.rewards.grading import grader_of
from fieldcraft.rewards.mathematics import Math
from fieldcraft.rewards.rubric import AskingReward, BesideReward, Rubric
from fieldcraft.types import Reward, Task, Trajectory


class Auto(AskingReward):
    """The score of each task's own grader, see `grader_of`.

    Args:
        make: a grader by its name, or None where the run has none, such as no judge; then a task
            that asks for it cannot be graded. Each is made when the first task asks for it.
    """

    name = AUTO

    def __init__(self, make: Callable[[str], Reward | None]) -> None:
        self._make = make
        self._made: dict[str, Reward | None] = {}

    async def ask(self, trajectory: Trajectory) -> float | None:
        grader = self._grader(grader_of(trajectory.task))
        if grader is None:
            return None
        if isinstance(grader, AskingReward):
            return await grader.ask(trajectory)
        if isinstance(grader, BesideReward):
            [score] = await grader.scores([trajectory])
            return score
        [score] = grader([trajectory])
        return score

    def _grader(self, name: str) -> Reward | None:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]


async def grade(correct: Reward, trajectories: Sequence[Trajectory]) -> None:
    """Fill in the verdict of each trajectory, so that `right` tells it. Raises UserError as
    `Rubric.score` does."""
    rubric = Rubric([(correct, 1.0)], correct.name)
    await rubric.prepare(trajectories)
    for trajectory in trajectories:
        await rubric.score([trajectory])


async def same_answers(trajectories: Sequence[Trajectory]) -> list[int | None]:
    """Return which of several answers to one question are the same: for each the place of the first
    one like it, None for no answer. Where the question is graded as mathematics, equal values are
    the same, and else equal texts."""
    firsts: list[int] = []
    found: list[int | None] = []
    for place, trajectory in enumerate(trajectories):
        if not (trajectory.answer or "").strip():
            found.append(None)
            continue
        for first in firsts:
            if await _same(trajectories[first], trajectory):
                found.append(first)
                break
        else:
            firsts.append(place)
            found.append(place)
    return found


async def _same(first: Trajectory, other: Trajectory) -> bool:
    answer, wanted = other.answer or "", first.answer or ""
    if compared(answer) == compared(wanted):
        return True
    if first.correct != Math.name:
        return False
    task: Task = replace(first.task, answers=(wanted,))
    return await Math().ask(Trajectory(task, answer=answer)) == 1.0
