"""Reinforcement learning in virtual time: the scheduler is the real one, durations are modelled.

`train/sampler.py:Sampler` and `train/stream.py:Stream` decide what is sampled when, and what is
waited for. What they decide about is only counted: no model, no weights, no text.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aiotools import VirtualClock

from fieldcraft.config.rl import Rl
from fieldcraft.envs.guards import Gate
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.scaling.engines import Modelled, Several, Speed
from fieldcraft.scaling.workload import Played, Player, Workload
from fieldcraft.train.sampler import Group, Sampler
from fieldcraft.train.stream import Stream
from fieldcraft.types import Task, Trajectory

YEAR = 365 * 24 * 3600.0  # virtual seconds, after which a simulation is stuck


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline to simulate: rollouts on engines, and steps on trainers.

    `learn_seconds` says how long a step over rollouts takes, from their tokens and their number.
    `speed` is that of each engine, and `speeds` those of engines that differ.
    """

    workload: Workload
    speeds: Sequence[Speed]
    learn_seconds: Callable[[int, int], float]
    questions: int
    group: int
    max_staleness: int = 0
    rows: int = 256  # of each engine
    concurrent_calls: int = 64  # as in a recipe's budget
    publish_seconds: float = 0.0
    steps: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A step: when it began, in seconds, how long it waited and trained, and what it trained."""

    began: float
    ended: float
    waited: float
    learnt: float
    rollouts: int
    tokens: int
    staleness: int
    dropped: int


@dataclass(frozen=True)
class Simulated:
    """The steps of a simulation. The first ones, in which engines have had no time to work ahead,
    are not counted, unless there are no others."""

    steps: Sequence[Step]
    warm_up: int = field(default=1)

    @property
    def counted(self) -> Sequence[Step]:
        return self.steps[self.warm_up :] or self.steps

    @property
    def seconds(self) -> float:
        return self.counted[-1].ended - self.counted[0].began

    @property
    def rate(self) -> float:
        """Rollouts that are trained in a second."""
        return sum(step.rollouts for step in self.counted) / self.seconds

    @property
    def token_rate(self) -> float:
        return sum(step.tokens for step in self.counted) / self.seconds

    @property
    def waiting(self) -> float:
        """The share of time in which trainers wait."""
        return sum(step.waited for step in self.counted) / self.seconds


class Right(StatelessReward):
    """A reward that finds every rollout right: it is only counted."""

    name = "em"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [1.0] * len(group)


def simulate(pipeline: Pipeline) -> Simulated:
    """Simulate a pipeline, and return its steps. The same pipeline has always the same steps."""

    async def run() -> list[Step]:
        with VirtualClock().patch_loop():
            async with asyncio.timeout(YEAR):
                return await _steps(pipeline)

    return Simulated(asyncio.run(run()), min(1 + pipeline.max_staleness, pipeline.steps - 1))


async def _steps(pipeline: Pipeline) -> list[Step]:
    """Run the steps as `train/stages/rl.py:RlStage.step` has them: sample, train, publish."""
    sampler = _sampler(pipeline)
    clock, steps = asyncio.get_running_loop().time, list[Step]()
    await sampler.open()
    try:
        for number in range(pipeline.steps):
            began = clock()
            sampled = await sampler.sample(number)
            waited = clock() - began
            rollouts, tokens = _size(sampled.groups)
            seconds = pipeline.learn_seconds(tokens, rollouts)
            await asyncio.sleep(seconds)
            await sampler.publish(number + 1)
            row = sampled.row
            staleness, dropped = row.get("staleness_max", 0), row.get("dropped", 0)
            steps.append(
                Step(began, clock(), waited, seconds, rollouts, tokens, staleness, dropped)
            )
    finally:
        await sampler.close()
    return steps


def _size(groups: Sequence[Group]) -> tuple[int, int]:
    """Return the number of rollouts and the number of their tokens."""
    played = [cast(Played, trajectory) for group in groups for trajectory in group]
    return len(played), sum(rollout.length for rollout in played)


def _sampler(pipeline: Pipeline) -> Sampler:
    """Return the real sampler, without what it never asks for in a simulation."""
    staleness = pipeline.max_staleness
    ahead = pipeline.steps + staleness + 1  # so that the last steps are like the others
    settings = Rl.model_validate(
        {
            "steps": ahead,
            "questions": pipeline.questions,
            "group": pipeline.group,
            "async": {"max_staleness": staleness},
            "optim": {"lr": 1.0},
        }
    )
    engines = [
        Modelled(speed, pipeline.rows, pipeline.publish_seconds) for speed in pipeline.speeds
    ]
    nothing: Any = None
    kind = Stream if staleness else Sampler
    return kind(
        settings=settings,
        tasks=[Task(str(i), "", ("",)) for i in range(pipeline.questions * ahead)],
        env=nothing,
        engine=Several(engines),
        rubric=Rubric([(Right(), 1.0)]),
        seed=pipeline.seed,
        play=Player(
            pipeline.workload,
            Gate(pipeline.concurrent_calls),
            random.Random(pipeline.seed).randrange(2**32),
        ),
    )
