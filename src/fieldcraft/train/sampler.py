"""Sampling for reinforcement learning: questions, rollouts in groups, and their rewards.

It knows no weights and no losses: `learner.py` does. Here the two take turns; in `stream.py`
sampling does not wait.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Any, Protocol, TypeVar, runtime_checkable

from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import Limits
from fieldcraft.engine.base import PolicyEngine
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.records.events import Sink, TrajectoryDone, nobody
from fieldcraft.records.timeline import Timeline
from fieldcraft.rewards.length import SoftOverlong
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.rollout.environments import Play
from fieldcraft.rollout.loop import (
    Policy,
    Simulator,
    rollout,
    rollouts,
    tool_free_rollout,
)
from fieldcraft.rollout.simulators import PolicySimulator
from fieldcraft.train.epochs import draw
from fieldcraft.train.resampling import resample
from fieldcraft.train.tool_free import tool_free_questions
from fieldcraft.types import Task, Trajectory

Group = Sequence[Trajectory]
Player = Callable[[Task, str], Awaitable[Trajectory]]
Row = dict[str, Any]
T = TypeVar("T")


@runtime_checkable
class Travelling(Protocol):
    """An engine whose weights travel to it."""

    @property
    def published(self) -> Row:
        """Costs of the last `publish`, as metrics of a step."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The groups of a step to train on, everything that was sampled for them, and in how many
    batches of questions. `row` has further metrics."""

    groups: list[Group]
    trajectories: list[Trajectory]
    batches: int
    row: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Sampler:
    """A sampler of the rollouts of one step at a time, while nothing is trained.

    `drawn` is its position in the stream of questions, which a checkpoint keeps, and `version` the
    policy that the engine samples from, where that is known: as many steps as it has behind it.
    `frozen`, an engine, simulates for `simulator: frozen`, and `remote` writes observations for
    `simulator: endpoint`. `play` plays the rollouts in an environment of others.
    """

    settings: Rl
    tasks: Sequence[Task]
    env: ToolEnvironment
    engine: PolicyEngine
    rubric: Rubric
    seed: int
    frozen: PolicyEngine | None = None
    remote: Simulator | None = None
    play: Play | None = None
    name: str = "rl"  # of the stage, in events
    emit: Sink = nobody
    timeline: Timeline = field(default_factory=Timeline)  # of rollouts, and of who waits for them
    drawn: int = 0  # batches of questions so far
    version: int | None = None

    async def open(self) -> None:
        """Prepare the engine."""

    async def sample(self, number: int) -> Sampled:
        """Sample the rollouts of step `number`, with their rewards.

        Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): groups that teach nothing are
        replaced by those of further questions, until the step is full or `max_batches` are sampled;
        then the step takes what there is. Batches that a step does not need are left to the next
        one, so that an epoch asks every question.
        """
        s = self.settings
        await self._sleep()  # an evaluation may have left sessions, which a resumed run has not
        await self.ensure(number)
        most = 1 if s.keep_groups == "all" else s.max_batches
        kept: list[Group] = []
        flat: list[Trajectory] = []
        for batch in range(most):
            chosen = draw(self.seed, self.drawn + batch, len(self.tasks), s.questions)
            found = await self._batch([self.tasks[i] for i in chosen], number, batch)
            for group in found:
                await self.rubric_at(number).score(group)
            flat += [trajectory for group in found for trajectory in group]
            kept += filter(self.teaches, self._resampled(found, number, batch))
            if len(kept) >= s.questions:
                break
        self.drawn += batch + 1
        return Sampled(kept[: s.questions], flat, batch + 1)

    async def train(self, learn: Callable[[], T]) -> T:
        """Let the learner work. The caches make room for it, also in a step that trains nothing: a
        run that is resumed after it has no cached sessions either."""
        await self._sleep()
        return learn()

    async def publish(self, version: int) -> None:
        """Sample from now on with the weights as they are now."""
        await self.engine.publish(version)
        self.version = version

    async def ensure(self, version: int) -> None:
        """Publish the weights that a stage begins with, or is resumed with."""
        if self.version != version:
            await self.publish(version)

    async def close(self) -> None:
        """End what is still being sampled."""

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]

    async def _sleep(self) -> None:
        await self.engine.sleep()
        if self.frozen is not None:
            await self.frozen.sleep()

    async def _batch(self, tasks: Sequence[Task], number: int, batch: int) -> list[Group]:
        s, size = self.settings, self.size
        env, simulated = self.env_at(number), simulates(s, number)
        players = self.players(tasks, self.drawn + batch, env, simulated=simulated)
        first = batch * s.questions
        jobs = {
            f"{number}/{first + p}/{g}": (task, players[p])
            for p, task in enumerate(tasks)
            for g in range(size)
        }

        async def play(task: Task, key: str) -> Trajectory:
            _, player = jobs[key]
            return await player(task, key)

        done = await rollouts(
            [(task, key) for key, (task, _) in jobs.items()],
            play,
            len(jobs),
            lambda t: self.emit(TrajectoryDone(self.name, t)),
        )
        await self.rubric.prepare(done)
        return [done[p * size : (p + 1) * size] for p in range(len(tasks))]

    @property
    def size(self) -> int:
        """Number of rollouts that are sampled for a question."""
        return self.settings.group * self.settings.oversample

    def limits_at(self, number: int) -> Limits:
        """Return the budget of rollouts that begin in step `number`."""
        return self.settings.limits_at(self.env.budget, number)

    def env_at(self, number: int) -> ToolEnvironment:
        """Return the environment of these rollouts."""
        return self.env.within(self.limits_at(number)) if self.settings.budget else self.env

    def rubric_at(self, number: int) -> Rubric:
        """Return the rubric that scores them: rollouts are overlong by their own budget."""
        s = self.settings
        if not (s.budget and s.overlong_penalty):
            return self.rubric
        return self.rubric.replacing(SoftOverlong(*s.overlong_span(self.limits_at(number))))

    def players(
        self, tasks: Sequence[Task], batch: int, env: ToolEnvironment, *, simulated: bool
    ) -> list[Player]:
        """Return the player of the rollouts of each question of a batch."""
        tool_free = tool_free_questions(self.settings, self.seed, batch, tasks)
        with_tools, alone = self._player(env, simulated=simulated), self._tool_free_player(env)
        return [alone if place in tool_free else with_tools for place in range(len(tasks))]

    def _tool_free_player(self, env: ToolEnvironment) -> Player:
        async def play(task: Task, key: str) -> Trajectory:
            with self.timeline.follow():
                return await tool_free_rollout(task, self._policy, env, key)

        return play

    @property
    def _policy(self) -> Policy:
        return Policy(engine=self.engine, temperature=self.settings.temperature, seed=self.seed)

    def _player(self, env: ToolEnvironment, *, simulated: bool) -> Player:
        """Return the player of the rollout of a task and a key. If a frozen model writes the
        observations, it samples in an engine with sessions of its own."""
        policy = self._policy
        simulator: Simulator | None = None
        if simulated and (temperatures := self.settings.simulation_temperatures):
            engine = self.frozen or policy.engine
            writer = replace(policy, engine=engine, temperature=temperatures[1])
            simulator = self.remote or PolicySimulator(writer)

        async def play(task: Task, key: str) -> Trajectory:
            with self.timeline.follow():
                if self.play is not None:
                    return await self.play(task, policy, key)
                return await rollout(task, policy, env, key, simulator)

        return play

    def _resampled(self, groups: Sequence[Group], number: int, batch: int) -> Sequence[Group]:
        rng = random.Random(f"resample:{self.seed}:{number}:{batch}")
        return [self.cut(group, rng) for group in groups]

    def cut(self, group: Group, rng: random.Random) -> Group:
        """Cut a group to the size that it is trained on; a larger one loses members by
        resampling."""
        most = self.settings.group
        return resample(group, most, rng) if len(group) > most else group

    def teaches(self, group: Group) -> bool:
        """Return whether dynamic sampling keeps a group: some of its graded rollouts are right and
        some wrong, or their rewards differ (which also keeps what OTC has to say about groups in
        which all are right)."""
        s = self.settings
        if s.keep_groups == "mixed-accuracy":
            scores = [t.rewards[t.correct] for t in group if t.reward is not None]
            return 0 < scores.count(1.0) < len(scores) - scores.count(None)
        return s.keep_groups == "all" or not equal(group)


def equal(group: Group) -> bool:
    """Return whether the rollouts that could be graded all have the same reward."""
    return len({t.reward for t in group if t.reward is not None}) < 2


def simulates(s: Rl, number: int) -> bool:
    """Return whether the observations of a step are simulated. In a mixed stage that follows from
    the step's number alone: of the first n steps, n * simulated_share are, rounded up."""
    if s.observations != "mixed":
        return s.observations == "simulated"
    share = Fraction(s.simulated_share).limit_denominator(1000)  # 5/6, not the float beside it
    return ceil((number + 1) * share) > ceil(number * share)
