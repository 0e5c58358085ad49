"""Evaluation: every task once, or sampled several times, graded by the rubric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from fieldcraft.concurrency import run_concurrently
from fieldcraft.config.sections import DEFAULT_MAX_BROKEN
from fieldcraft.environments.base import OpenEnvironment
from fieldcraft.environments.monitors import EvaluationMonitor
from fieldcraft.evaluation.achievement import describe_broken_rate
from fieldcraft.evaluation.summary import measure_broken_rollouts
from fieldcraft.records.events import EventHandler, LogMessage, TrajectoryCompleted, track_phase
from fieldcraft.rewards.answers import CoverExactMatch, ExactMatch, F1Reward, FormatReward
from fieldcraft.rewards.rubric import AsyncReward, Rubric
from fieldcraft.types import Reward, Task, Trajectory

ActorT = TypeVar("ActorT")


def make_verdict_rubric(
    judge: AsyncReward | None = None,
    verdict_reward: Reward | None = None,
    criteria: AsyncReward | None = None,
) -> Rubric:
    """Return the rubric of an evaluation with the given verdict reward (default: exact match). All
    other rewards are only recorded."""
    grader = verdict_reward or ExactMatch()
    extra_rewards: list[Reward] = [ExactMatch(), F1Reward(), CoverExactMatch(), FormatReward()]
    extra_rewards += [reward for reward in (judge, criteria) if reward is not None]
    recorded = [(reward, 0.0) for reward in extra_rewards if reward.name != grader.name]
    return Rubric([(grader, 1.0), *recorded], grader.name)


def sample_once(task: Task) -> int:
    """Return 1, the number of samples of every question."""
    return 1


async def evaluate_tasks(
    tasks: Sequence[Task],
    environment: OpenEnvironment[ActorT],
    policy: ActorT,
    rubric: Rubric,
    concurrency: int,
    name: str,
    emit: EventHandler,
    samples: Callable[[Task], int] = sample_once,
    max_broken: float = DEFAULT_MAX_BROKEN,
) -> list[Trajectory]:
    """Run and grade every task `samples(task)` times. Return trajectories in the order of the
    tasks, with the trajectories of a task together. `name` is the name of the phase in events.

    Rollouts with a tool or engine failure are counted separately, and events report their rate at
    the end. Raises UserError with the cause if their share exceeds `max_broken`.
    """
    jobs = [(task, f"eval/{i}/{s}") for i, task in enumerate(tasks) for s in range(samples(task))]
    monitor = EvaluationMonitor(name, len(jobs), max_broken)

    async def run_and_grade(task: Task, key: str) -> Trajectory:
        trajectory = await environment.run(task, policy, key)
        await rubric.score_async_rewards([trajectory])
        await rubric.score([trajectory])
        return trajectory

    def on_done(trajectory: Trajectory) -> None:
        monitor.add(trajectory)
        emit(TrajectoryCompleted(name, trajectory))

    with track_phase(emit, name, len(jobs), "questions"):
        trajectories = await run_concurrently(jobs, run_and_grade, concurrency, on_done)
    if sentence := describe_broken_rate(name, measure_broken_rollouts(trajectories)):
        emit(LogMessage(sentence))
    return trajectories
