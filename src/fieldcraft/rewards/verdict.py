"""Verdicts: correctness of answers according to the reward that a recipe names as `verdict_reward`.

Rollouts are graded by a rubric. Answers outside of rollouts, such as answers of demonstrations and
teachers, are graded by `grade_verdicts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fieldcraft.config.components import AUTO_VERDICT, ComponentKind
from fieldcraft.config.names import resolve
from fieldcraft.rewards.answers import normalise_or_raw
from fieldcraft.rewards.grading import MATH, resolve_grader
from fieldcraft.rewards.rubric import AsyncGroupReward, AsyncReward, Rubric
from fieldcraft.types import Reward, Task, Trajectory


class AutoReward(AsyncReward):
    """Score of each task's own grader, see `resolve_grader`.

    Args:
        make: factory of a grader by name; None if the run has no such grader, for example no judge.
            Tasks that require it then cannot be graded. Each grader is created on first use.
    """

    name = AUTO_VERDICT

    def __init__(self, make: Callable[[str], Reward | None]) -> None:
        self._factory = make
        self._graders: dict[str, Reward | None] = {}

    async def score_trajectory(self, trajectory: Trajectory) -> float | None:
        name = resolve_grader(trajectory.task)
        if name not in self._graders:
            self._graders[name] = self._factory(name)
        grader = self._graders[name]
        if grader is None:
            return None
        if isinstance(grader, AsyncReward):
            return await grader.score_trajectory(trajectory)
        if isinstance(grader, AsyncGroupReward):
            [score] = await grader.score_group([trajectory])
            return score
        [score] = grader([trajectory])
        return score


async def grade_verdicts(verdict_reward: Reward, trajectories: Sequence[Trajectory]) -> None:
    """Set the verdict of each trajectory, which `is_correct` reads. Raises UserError like
    `Rubric.score`."""
    rubric = Rubric([(verdict_reward, 1.0)], verdict_reward.name)
    await rubric.score_async_rewards(trajectories)
    for trajectory in trajectories:
        await rubric.score([trajectory])


async def match_equal_answers(trajectories: Sequence[Trajectory]) -> list[int | None]:
    """Return groups of equal answers to one question: for each answer the index of the first equal
    one, None for a missing answer. For questions graded as mathematics, equal values are equal,
    otherwise equal texts."""
    firsts: list[int] = []
    matches: list[int | None] = []
    for index, trajectory in enumerate(trajectories):
        if not (trajectory.answer or "").strip():
            matches.append(None)
            continue
        for first in firsts:
            if await _is_same_answer(trajectories[first], trajectory):
                matches.append(first)
                break
        else:
            firsts.append(index)
            matches.append(index)
    return matches


async def _is_same_answer(first: Trajectory, other: Trajectory) -> bool:
    answer, wanted = other.answer or "", first.answer or ""
    if normalise_or_raw(answer) == normalise_or_raw(wanted):
        return True
    if first.correct != MATH:
        return False
    grader: AsyncReward = resolve(ComponentKind.REWARD, MATH)()
    task: Task = replace(first.task, answers=(wanted,))
    return await grader.score_trajectory(Trajectory(task, answer=answer)) == 1.0
