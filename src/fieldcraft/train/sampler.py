"""Sampling for reinforcement learning: questions, groups of rollouts, and their rewards.

It is independent of weights and losses, which `learner.py` handles. Here sampling and training
alternate; in `async_sampler.py` they run concurrently.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, floor
from typing import Any, TypeVar

from fieldcraft.concurrency import run_concurrently
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.engine.base import PolicyEngine
from fieldcraft.environments.base import OpenEnvironment
from fieldcraft.environments.simulators import EndpointSimulator, PolicySimulator
from fieldcraft.environments.tool_environment import require_tool_environment, run_tool_free_rollout
from fieldcraft.environments.turns import Policy, Simulator
from fieldcraft.records.events import EventHandler, TrajectoryCompleted, ignore_event
from fieldcraft.records.timeline import Timeline
from fieldcraft.rewards.rollouts import SoftOverlongPenalty
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.train.epochs import draw_epoch_batch
from fieldcraft.types import Task, Trajectory

RolloutGroup = Sequence[Trajectory]
_Metrics = dict[str, Any]
T = TypeVar("T")
NO_CALL_PENALTY = 0.5  # penalty of a correct rollout without tool calls
# Added to penalties, so that a clean rollout is at most 11 times as likely as one in which every
# call failed.
PENALTY_OFFSET = 0.1


@dataclass(frozen=True, slots=True)
class StepRollouts:
    """Rollouts of a step: groups to train on, all sampled trajectories, the number of batches of
    questions, and additional metrics."""

    groups: list[RolloutGroup]
    trajectories: list[Trajectory]
    num_batches: int
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class RolloutSampler:
    """Synchronous sampler of the rollouts of one step at a time.

    `batches_drawn` is the position in the stream of questions, which is stored in checkpoints.
    `version` is the policy version of the engine, equal to its number of training steps; None if
    unknown. `frozen_engine` simulates for `simulator: frozen`, and `remote_simulator` writes
    observations for `simulator: endpoint`. `base_budget` is the budget that the settings change;
    None for the environment's.
    """

    settings: Rl
    tasks: Sequence[Task]
    env: OpenEnvironment[Policy]
    engine: PolicyEngine
    rubric: Rubric
    seed: int
    frozen_engine: PolicyEngine | None = None
    remote_simulator: EndpointSimulator | None = None
    base_budget: BudgetConfig | None = None
    name: str = "rl"  # of the stage, in events
    emit: EventHandler = ignore_event
    timeline: Timeline = field(default_factory=Timeline)  # of rollouts, and of waits for them
    batches_drawn: int = 0  # batches of questions so far
    version: int | None = None

    async def open(self) -> None:
        """Prepare the engine."""

    async def sample(self, number: int) -> StepRollouts:
        """Sample the rollouts of step `number`, with their rewards.

        Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): groups without signal are replaced
        by groups of further questions, until the step is full or `max_sampling_batches` are
        sampled; then the step uses the available ones. Batches that a step does not need are left
        for the next one, so that an epoch asks every question.
        """
        s = self.settings
        await self._sleep()  # evaluations may leave sessions, which resumed runs lack
        await self.ensure_version(number)
        max_batches = 1 if s.group_filter == "none" else s.max_sampling_batches
        trained: list[RolloutGroup] = []
        trajectories: list[Trajectory] = []
        for batch in range(max_batches):
            indices = draw_epoch_batch(
                self.seed, self.batches_drawn + batch, len(self.tasks), s.questions_per_step
            )
            groups = await self._sample_batch([self.tasks[i] for i in indices], number, batch)
            for group in groups:
                await self.rubric_at(number).score(group)
            trajectories += [trajectory for group in groups for trajectory in group]
            rng = random.Random(f"resample:{self.seed}:{number}:{batch}")
            resampled = [self.downsample(group, rng) for group in groups]
            trained += filter(self.has_signal, resampled)
            if len(trained) >= s.questions_per_step:
                break
        self.batches_drawn += batch + 1
        return StepRollouts(trained[: s.questions_per_step], trajectories, batch + 1)

    async def train(self, learn: Callable[[], T]) -> T:
        """Free the KV caches, then run the learner. Caches are also freed in a step that trains
        nothing, because a run that is resumed after it has no cached sessions either."""
        await self._sleep()
        return learn()

    async def publish(self, version: int) -> None:
        """Publish the current weights, and sample with them from now on."""
        await self.engine.update_weights(version)
        self.version = version

    async def ensure_version(self, version: int) -> None:
        """Publish the weights if the engine has a different version, at the start of a stage or on
        resuming."""
        if self.version != version:
            await self.publish(version)

    async def close(self) -> None:
        """Cancel unfinished sampling."""

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.batches_drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches_drawn = state["drawn"]

    async def _sleep(self) -> None:
        await self.engine.sleep()
        if self.frozen_engine is not None:
            await self.frozen_engine.sleep()

    async def _sample_batch(
        self, tasks: Sequence[Task], number: int, batch: int
    ) -> list[RolloutGroup]:
        s, size = self.settings, self.rollouts_per_question
        environments = self.select_environments(
            tasks, self.batches_drawn + batch, number, simulated=is_simulated_step(s, number)
        )
        first = batch * s.questions_per_step
        jobs = {
            f"{number}/{first + p}/{g}": (task, environments[p])
            for p, task in enumerate(tasks)
            for g in range(size)
        }

        with self.timeline.collect_spans():
            done = await run_concurrently(
                [(task, key) for key, (task, _) in jobs.items()],
                lambda task, key: jobs[key][1].run(task, self.policy, key),
                len(jobs),
                lambda t: self.emit(TrajectoryCompleted(self.name, t)),
            )
        await self.rubric.score_async_rewards(done)
        return [done[p * size : (p + 1) * size] for p in range(len(tasks))]

    @property
    def rollouts_per_question(self) -> int:
        """Number of rollouts sampled per question."""
        return self.settings.group_size * self.settings.oversample_factor

    def budget_at(self, number: int) -> BudgetConfig:
        """Return the budget of rollouts that start in step `number`."""
        return self.settings.budget_at_step(self.base_budget or self.env.budget, number)

    def env_at(self, number: int) -> OpenEnvironment[Policy]:
        """Return the environment of rollouts that start in step `number`."""
        budget = self.budget_at(number)
        if budget == self.env.budget:
            return self.env
        return require_tool_environment(self.env).with_changes(budget=budget)

    def rubric_at(self, number: int) -> Rubric:
        """Return the rubric of rollouts that start in step `number`: the overlong penalty depends
        on their budget."""
        s = self.settings
        if not (s.budget and s.overlong_penalty):
            return self.rubric
        return self.rubric.with_reward(
            SoftOverlongPenalty(*s.resolve_overlong_buffer(self.budget_at(number)))
        )

    def select_environments(
        self, tasks: Sequence[Task], batch: int, number: int, *, simulated: bool
    ) -> list[OpenEnvironment[Policy]]:
        """Return the environment of each question of a batch, for rollouts that start in step
        `number`."""
        env = with_tools = self.env_at(number)
        if simulated:
            with_tools = require_tool_environment(env).with_changes(simulator=self._simulator)
        environments = [with_tools] * len(tasks)
        for index in select_tool_free_questions(self.settings, self.seed, batch, tasks):
            environments[index] = require_tool_environment(env).with_changes(
                workflow=run_tool_free_rollout
            )
        return environments

    @property
    def policy(self) -> Policy:
        """Policy of the rollouts."""
        return Policy(engine=self.engine, temperature=self.settings.temperature, seed=self.seed)

    @property
    def _simulator(self) -> Simulator | None:
        """Simulator of observations. A frozen model samples from an engine with separate
        sessions."""
        temperatures = self.settings.simulation_temperatures
        if temperatures is None:
            return None
        engine = self.frozen_engine or self.engine
        policy = replace(self.policy, engine=engine, temperature=temperatures[1])
        return self.remote_simulator or PolicySimulator(policy)

    def downsample(self, group: RolloutGroup, rng: random.Random) -> RolloutGroup:
        """Reduce a group to the size that is trained on, by resampling if it is larger. Ungraded
        rollouts, which cannot be trained on, are dropped first if enough others remain."""
        size = self.settings.group_size
        graded = [t for t in group if t.reward is not None]
        candidates = graded if len(graded) >= size else group
        return resample_on_correct(candidates, size, rng) if len(candidates) > size else candidates

    def has_signal(self, group: RolloutGroup) -> bool:
        """Return whether dynamic sampling keeps a group: its graded rollouts include correct and
        incorrect ones, or their rewards differ (which also keeps OTC's signal in groups where all
        are correct)."""
        s = self.settings
        if s.group_filter == "accuracy":
            scores = [t.rewards[t.correct] for t in group if t.reward is not None]
            return 0 < scores.count(1.0) < len(scores) - scores.count(None)
        return s.group_filter == "none" or not has_equal_rewards(group)


def has_equal_rewards(group: RolloutGroup) -> bool:
    """Return whether all graded rollouts have the same reward."""
    return len({t.reward for t in group if t.reward is not None}) < 2


def is_simulated_step(s: Rl, number: int) -> bool:
    """Return whether the observations of a step are simulated. In a mixed stage this depends only
    on the step's number: of the first n steps, n * simulated_share are simulated, rounded up."""
    if s.observations != "mixed":
        return s.observations == "simulated"
    share = Fraction(s.simulated_share).limit_denominator(1000)  # 5/6, not the nearest float
    return ceil((number + 1) * share) > ceil(number * share)


def select_tool_free_questions(
    settings: Rl, seed: int, batch: int, tasks: Sequence[Task]
) -> set[int]:
    """Return the indices, in batch number `batch`, of the questions that are asked without tools.

    Their number is n * `cot_share` of the n questions that `cot_questions` admits, with stochastic
    rounding, so that its expectation is n * `cot_share`.
    """
    known_only = settings.cot_questions == "known"
    eligible = [p for p, task in enumerate(tasks) if not known_only or task.is_known]
    rng = random.Random(f"cot:{seed}:{batch}")
    count = floor(len(eligible) * settings.cot_share + rng.random())
    return set(rng.sample(eligible, min(count, len(eligible))))


def resample_on_correct(
    group: Sequence[Trajectory], size: int, rng: random.Random
) -> list[Trajectory]:
    """Return `size` rollouts of a larger group, in the original order, with the same fraction of
    incorrect ones (GRPO-RoC of rStar2-Agent, arXiv 2508.20722, section 3.3), rounded so that a
    group with both kinds keeps one of each.

    More rollouts are sampled than a step trains on. Incorrect rollouts are subsampled uniformly, so
    that all kinds of mistakes are represented. Among correct rollouts, clean ones are preferred:
    with few failed calls, and matching the dialect's grammar.
    """
    incorrect = [t for t in group if not t.is_correct]
    correct = [t for t in group if t.is_correct]
    num_incorrect = round(len(incorrect) * size / len(group))
    num_incorrect = min(max(num_incorrect, bool(incorrect)), size - bool(correct))
    # Weighted sampling without replacement (Efraimidis and Spirakis 2006): the largest u^(1/w).
    keys = {id(t): rng.random() ** (PENALTY_OFFSET + compute_penalty(t)) for t in correct}
    correct.sort(key=lambda t: keys[id(t)], reverse=True)
    selected = {
        id(t) for t in (*rng.sample(incorrect, num_incorrect), *correct[: size - num_incorrect])
    }
    return [t for t in group if id(t) in selected]


def compute_penalty(trajectory: Trajectory) -> float:
    """Return p_total = p_err + p_format: the fraction of calls that failed or were not executed,
    plus 1 for a rollout that violates the grammar."""
    calls = trajectory.calls
    failed = sum(call.outcome.failed or not call.outcome.executed for call in calls)
    errors = failed / len(calls) if calls else NO_CALL_PENALTY
    return errors + (not trajectory.well_formed)
