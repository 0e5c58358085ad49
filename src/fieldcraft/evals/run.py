"""Evaluation: every task once, greedily, graded by the rubric."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fieldcraft.rewards.answers import F1, CoverEM, ExactMatch, Format
from fieldcraft.rewards.rubric import AskingReward, Rubric
from fieldcraft.rollout.loop import rollouts
from fieldcraft.terminal import StageProgress
from fieldcraft.types import Task, Trajectory


def answer_rubric(judge: AskingReward | None = None) -> Rubric:
    """What an evaluation grades by: exact match; all else is recorded beside it."""
    asked = [] if judge is None else [(judge, 0.0)]
    return Rubric([(ExactMatch(), 1.0), (F1(), 0.0), (CoverEM(), 0.0), (Format(), 0.0), *asked])


def evaluate(
    tasks: Sequence[Task],
    run: Callable[[Task, str], Awaitable[Trajectory]],
    rubric: Rubric,
    concurrency: int,
    progress: StageProgress,
) -> list[Trajectory]:
    """Run and grade every task; trajectories in the order of the tasks."""
    seen = graded = 0
    right = calls = 0.0

    async def run_and_ask(task: Task, key: str) -> Trajectory:
        trajectory = await run(task, key)
        await rubric.prepare([trajectory])
        return trajectory

    def on_done(trajectory: Trajectory) -> None:
        nonlocal seen, graded, right, calls
        rubric.score([trajectory])
        seen += 1
        em = trajectory.rewards.get("em")
        if em is not None:
            graded += 1
            right += em
        calls += trajectory.executed_calls
        progress.update(seen, em=right / max(graded, 1), calls=calls / seen)

    jobs = [(task, f"eval/{i}") for i, task in enumerate(tasks)]
    return asyncio.run(rollouts(jobs, run_and_ask, concurrency, on_done))
