"""Reinforcement learning in virtual time, with the real scheduler and modelled durations.

`train/sampler.py:RolloutSampler` and `train/async_sampler.py:AsyncRolloutSampler` schedule sampling
and waiting. Rollouts are only counted: there is no model and no text.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from aiotools import VirtualClock

from fieldcraft.concurrency import ConcurrencyLimiter
from fieldcraft.config.rl import Rl
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.train.async_sampler import AsyncRolloutSampler
from fieldcraft.train.sampler import RolloutGroup, RolloutSampler
from fieldcraft.types import Task, Trajectory
from simulation.engines import EngineSpeed, SimulatedEngine, SimulatedEngineGroup
from simulation.workload import RolloutWorkload, SimulatedRunner, SimulatedTrajectory

MAX_VIRTUAL_SECONDS = 365 * 24 * 3600.0  # virtual seconds after which a simulation is stuck


@dataclass(frozen=True, kw_only=True)
class PipelineModel:
    """Pipeline to simulate: rollouts on engines, and steps on trainers.

    `learn_seconds` returns the time of a step from the number of tokens and of rollouts. `speeds`
    has the speed of each engine.
    """

    workload: RolloutWorkload
    speeds: Sequence[EngineSpeed]
    learn_seconds: Callable[[int, int], float]
    questions: int
    group: int
    max_staleness: int = 0
    rows: int = 256  # rows of each engine
    concurrent_calls: int = 64  # as in a recipe's budget
    publish_seconds: float = 0.0
    steps: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """Simulated step: start and end times and durations of waiting and training, in seconds, and
    counts of the trained rollouts."""

    started: float
    finished: float
    wait_seconds: float
    train_seconds: float
    rollouts: int
    tokens: int
    staleness: int
    dropped: int


@dataclass(frozen=True)
class SimulationResult:
    """Steps of a simulation. Warm-up steps, before the engines have sampled ahead, are not counted,
    unless there are no others."""

    steps: Sequence[SimulatedStep]
    num_warmup_steps: int = field(default=1)

    @property
    def measured_steps(self) -> Sequence[SimulatedStep]:
        return self.steps[self.num_warmup_steps :] or self.steps

    @property
    def seconds(self) -> float:
        return self.measured_steps[-1].finished - self.measured_steps[0].started

    @property
    def rollouts_per_second(self) -> float:
        """Number of trained rollouts per second."""
        return sum(step.rollouts for step in self.measured_steps) / self.seconds

    @property
    def tokens_per_second(self) -> float:
        return sum(step.tokens for step in self.measured_steps) / self.seconds

    @property
    def wait_share(self) -> float:
        """Share of the time in which trainers wait."""
        return sum(step.wait_seconds for step in self.measured_steps) / self.seconds


class ConstantReward(StatelessReward):
    """Reward that grades every rollout as correct."""

    name = "em"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [1.0] * len(group)


def simulate(pipeline: PipelineModel) -> SimulationResult:
    """Simulate a pipeline, and return its steps. The result is deterministic."""

    async def run() -> list[SimulatedStep]:
        with VirtualClock().patch_loop():
            async with asyncio.timeout(MAX_VIRTUAL_SECONDS):
                return await _run_steps(pipeline)

    return SimulationResult(asyncio.run(run()), min(1 + pipeline.max_staleness, pipeline.steps - 1))


async def _run_steps(pipeline: PipelineModel) -> list[SimulatedStep]:
    """Run steps like `train/stages/rl.py:RlStage.step`: sample, train, publish."""
    sampler = _make_sampler(pipeline)
    clock, steps = asyncio.get_running_loop().time, list[SimulatedStep]()
    await sampler.open()
    try:
        for number in range(pipeline.steps):
            started = clock()
            sampled = await sampler.sample(number)
            wait_seconds = clock() - started
            rollouts, tokens = _count_rollouts_and_tokens(sampled.groups)
            seconds = pipeline.learn_seconds(tokens, rollouts)
            await asyncio.sleep(seconds)
            await sampler.publish(number + 1)
            row = sampled.metrics
            staleness, dropped = row.get("staleness_max", 0), row.get("rollouts_dropped", 0)
            steps.append(
                SimulatedStep(
                    started, clock(), wait_seconds, seconds, rollouts, tokens, staleness, dropped
                )
            )
    finally:
        await sampler.close()
    return steps


def _count_rollouts_and_tokens(groups: Sequence[RolloutGroup]) -> tuple[int, int]:
    """Return the number of rollouts and their number of tokens."""
    trajectories = [
        cast(SimulatedTrajectory, trajectory) for group in groups for trajectory in group
    ]
    return len(trajectories), sum(rollout.num_tokens for rollout in trajectories)


def _make_sampler(pipeline: PipelineModel) -> RolloutSampler:
    """Return the real sampler, without components that a simulation does not use."""
    staleness = pipeline.max_staleness
    ahead = pipeline.steps + staleness + 1  # so that the last steps behave like the others
    settings = Rl.model_validate(
        {
            "steps": ahead,
            "questions_per_step": pipeline.questions,
            "group_size": pipeline.group,
            "async": {"max_staleness": staleness},
            "optim": {"lr": 1.0},
        }
    )
    engines = [
        SimulatedEngine(speed, pipeline.rows, pipeline.publish_seconds) for speed in pipeline.speeds
    ]
    sampler_type = AsyncRolloutSampler if staleness else RolloutSampler
    return sampler_type(
        settings=settings,
        tasks=[Task(str(i), "", ("",)) for i in range(pipeline.questions * ahead)],
        env=SimulatedRunner(
            pipeline.workload,
            ConcurrencyLimiter(pipeline.concurrent_calls),
            random.Random(pipeline.seed).randrange(2**32),
        ),
        engine=SimulatedEngineGroup(engines),
        rubric=Rubric([(ConstantReward(), 1.0)]),
        seed=pipeline.seed,
    )
