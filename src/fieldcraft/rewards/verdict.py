"""The verdict: whether an answer is right, by the reward that a recipe names as `verdict_reward`.

Everything that asks whether an answer is right asks here: rollouts by a rubric, and answers outside
of rollouts, such as those of demonstrations and teachers, by `grade_verdicts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fieldcraft.config.names import AUTO_VERDICT
from fieldcraft.rewards.answers import normalise_or_raw
from fieldcraft.rewards.grading import resolve_grader
from fieldcraft.rewards.mathematics import MathReward
from fieldcraft.rewards.rubric import AsyncGroupReward, AsyncReward, Rubric
from fieldcraft.types import Reward, Task, Trajectory


class AutoReward(AsyncReward):
    """The score of each task's own grader, see `resolve_grader`.

    Args:
        make: a grader by its name, or None where the run has none, such as no judge; then a task
            that asks for it cannot be graded. Each is made when the first task asks for it.
    """

    name = AUTO_VERDICT

    def __init__(self, make: Callable[[str], Reward | None]) -> None:
        self._factory = make
        self._graders: dict[str, Reward | None] = {}

    async def score_trajectory(self, trajectory: Trajectory) -> float | None:
        grader = self._get_grader(resolve_grader(trajectory.task))
        if grader is None:
            return None
        if isinstance(grader, AsyncReward):
            return await grader.score_trajectory(trajectory)
        if isinstance(grader, AsyncGroupReward):
            [score] = await grader.score_group([trajectory])
            return score
        [score] = grader([trajectory])
        return score

    def _get_grader(self, name: str) -> Reward | None:
        if name not in self._graders:
            self._graders[name] = self._factory(name)
        return self._graders[name]


async def grade_verdicts(verdict_reward: Reward, trajectories: Sequence[Trajectory]) -> None:
    """Fill in the verdict of each trajectory, so that `is_correct` tells it. Raises UserError as
    `Rubric.score` does."""
    rubric = Rubric([(verdict_reward, 1.0)], verdict_reward.name)
    await rubric.score_async_rewards(trajectories)
    for trajectory in trajectories:
        await rubric.score([trajectory])


async def match_equal_answers(trajectories: Sequence[Trajectory]) -> list[int | None]:
    """Return which of several answers to one question are the same: for each the place of the first
    one like it, None for no answer. Where the question is graded as mathematics, equal values are
    the same, and else equal texts."""
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
    if first.correct != MathReward.name:
        return False
    task: Task = replace(first.task, answers=(wanted,))
    return await MathReward().score_trajectory(Trajectory(task, answer=answer)) == 1.0
