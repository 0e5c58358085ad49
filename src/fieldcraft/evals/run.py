"""Evaluation: every task once, or sampled several times, graded by the rubric."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from fieldcraft.config.sections import MAX_BROKEN
from fieldcraft.evals.broken import broken_figures, broken_sentence
from fieldcraft.records.events import Said, Sink, TrajectoryDone, during
from fieldcraft.rewards.answers import F1, CoverEM, ExactMatch, Format
from fieldcraft.rewards.rubric import AskingReward, Rubric
from fieldcraft.rollout.health import EvaluationWatch
from fieldcraft.rollout.loop import rollouts
from fieldcraft.types import Reward, Task, Trajectory


def answer_rubric(judge: AskingReward | None = None, correct: Reward | None = None) -> Rubric:
    """Return the rubric of an evaluation: `correct`, the reward that tells which answers are right
    (exact match without one). All else is recorded beside it."""
    right = correct or ExactMatch()
    others: list[Reward] = [ExactMatch(), F1(), CoverEM(), Format()]
    if judge is not None:
        others.append(judge)
    recorded = [(reward, 0.0) for reward in others if reward.name != right.name]
    return Rubric([(right, 1.0), *recorded], right.name)


def once(task: Task) -> int:
    """Return 1, the number of samples of every question."""
    return 1


async def evaluate(
    tasks: Sequence[Task],
    run: Callable[[Task, str], Awaitable[Trajectory]],
    rubric: Rubric,
    concurrency: int,
    name: str,
    emit: Sink,
    samples: Callable[[Task], int] = once,
    most_broken: float = MAX_BROKEN,
) -> list[Trajectory]:
    """Run and grade every task `samples(task)` times. Returns trajectories in the order of the
    tasks, those of a task together. `name` is that of the part in events.

    A rollout that met a tool or an engine that failed has a rate of its own, which the events tell
    at the end. Raises UserError with the cause when they are more than the share `most_broken`.
    """
    jobs = [(task, f"eval/{i}/{s}") for i, task in enumerate(tasks) for s in range(samples(task))]
    watch = EvaluationWatch(name, len(jobs), most_broken)

    async def run_and_grade(task: Task, key: str) -> Trajectory:
        trajectory = await run(task, key)
        await rubric.prepare([trajectory])
        await rubric.score([trajectory])
        return trajectory

    def on_done(trajectory: Trajectory) -> None:
        watch.add(trajectory)
        emit(TrajectoryDone(name, trajectory))

    with during(emit, name, len(jobs), "questions"):
        done = await rollouts(jobs, run_and_grade, concurrency, on_done)
    if sentence := broken_sentence(name, broken_figures(done)):
        emit(Said(sentence))
    return done
