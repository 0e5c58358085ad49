"""Reinforcement learning: rollouts in groups, rewards, advantages, one shared optimiser step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from fieldcraft.algos.advantages import group_advantages
from fieldcraft.algos.losses import Surrogate
from fieldcraft.config import Rl
from fieldcraft.envs.tools import ToolEnvironment
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.rollout import Policy, PolicySimulator, rollout, rollouts
from fieldcraft.train.batch import Unit, to_sample
from fieldcraft.train.loop import Row
from fieldcraft.train.sft import draw
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Author, Engine, Outcome, Status, Task, Trajectory, UserError

# Metrics that are means over the tokens trained on; those of equal groups have no part in them.
OF_TRAINED = ("entropy", "ratio", "clip_fraction", "sampler_gap", "kl_ref")


class TrainableEngine(Engine, Protocol):
    """An engine that shares the trainer's weights."""

    def bump_version(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RlStage:
    """Everything a step of reinforcement learning needs.

    `reference` is a trainer around the frozen reference model, needed only for a KL term.
    """

    settings: Rl
    tasks: Sequence[Task]
    env: ToolEnvironment
    engine: TrainableEngine
    rubric: Rubric
    trainer: Trainer
    reference: Trainer | None
    seed: int

    def step(self, number: int) -> Row:
        """One step: sample groups, score them, and train on what their members differ in."""
        s = self.settings
        tasks = [self.tasks[i] for i in draw(self.seed, number, len(self.tasks), s.questions)]
        groups = asyncio.run(self._sample(tasks, number))
        flat = [trajectory for group in groups for trajectory in group]
        for group in groups:
            self.rubric.score(group)
        row = rollout_metrics(flat)
        check_tools(flat, {tool.name for tool in self.env.tools}, number, s.max_tool_failures)
        units, total, equal = self._units(groups)
        row |= {"tokens": sum(len(t.ids) for t in flat), "equal_groups": equal / len(groups)}
        if units:
            row |= self._train(units, total)
        # After a step without training too: a run that goes on here has no cached sessions either.
        self.engine.bump_version()
        return row

    async def _sample(self, tasks: Sequence[Task], number: int) -> list[list[Trajectory]]:
        s = self.settings
        policy = Policy(engine=self.engine, temperature=s.temperature, seed=self.seed)
        simulator = PolicySimulator(policy) if s.observations == "simulated" else None
        jobs = [(task, f"{number}/{p}/{g}") for p, task in enumerate(tasks) for g in range(s.group)]
        done = await rollouts(
            jobs, lambda t, key: rollout(t, policy, self.env, key, simulator), len(jobs)
        )
        await self.rubric.prepare(done)
        return [done[p * s.group : (p + 1) * s.group] for p in range(len(tasks))]

    def _units(self, groups: Sequence[Sequence[Trajectory]]) -> tuple[list[Unit], float, int]:
        """Samples with advantages, what the loss is divided by, and how many groups had equal
        rewards. Without KL and entropy terms an equal group has exactly no gradient, so it is
        counted in the divisor and left out of the computation."""
        s = self.settings
        units: list[Unit] = []
        total, equal = 0.0, 0
        for group in groups:
            advantages = group_advantages([t.reward for t in group], normalise_std=s.normalise_std)
            equal += not any(advantages)
            for trajectory, advantage in zip(group, advantages, strict=True):
                if trajectory.reward is None:
                    continue
                sample = to_sample(trajectory, {Author.POLICY}, advantage)
                if not sample.weight.any():
                    continue  # the prompt alone filled the budget
                if s.loss_weight == "sequence":
                    sample.weight /= sample.weight.sum()
                total += float(sample.weight.sum())
                if advantage or s.kl_coef or s.entropy_coef:
                    units.append((sample,))
        return units, total, equal

    def _train(self, units: list[Unit], total: float) -> Row:
        s = self.settings
        if s.importance_cap is not None:
            self.trainer.fill_logprobs(units, "old_logp", s.temperature)
        if self.reference is not None:
            self.reference.fill_logprobs(units, "ref_logp", s.temperature)
        objective = Surrogate(
            clip_low=s.clip_low,
            clip_high=s.clip_high,
            importance_cap=s.importance_cap or 1.0,
            kl_coef=s.kl_coef,
            entropy_coef=s.entropy_coef,
        )
        row = self.trainer.step(units, objective, total, s.temperature)
        trained = sum(float(sample.weight.sum()) for unit in units for sample in unit)
        return row | {name: row[name] * total / trained for name in OF_TRAINED if name in row}


def check_tools(
    trajectories: Sequence[Trajectory], tools: Collection[str], number: int, most: float
) -> None:
    """A tool that practically never answers would make the whole run meaningless.

    Raises UserError if more than the share `most` of at least one real call a rollout failed. What
    is no call, or one of a tool that is not in `tools`, is the policy's failure and does not count.
    """
    calls = [c for t in trajectories for c in t.calls if c.tool in tools and not c.simulated]
    failed = sum(call.outcome is Outcome.FAILED for call in calls)
    if len(calls) >= len(trajectories) and failed > most * len(calls):
        raise UserError(
            f"{failed} of the {len(calls)} tool calls of step {number} failed: check the search"
            " server or the tool."
        )


def rollout_metrics(trajectories: Sequence[Trajectory]) -> Row:
    """Means and rates of a step's rollouts. Truncated, unanswered, failed and ungradable ones are
    separate rates, so that none can hide in another."""
    count = len(trajectories)
    rewards = [t.reward for t in trajectories if t.reward is not None]
    graded = [t.rewards["em"] for t in trajectories if t.rewards.get("em") is not None]
    calls = [call for t in trajectories for call in t.calls]
    status = Counter(t.status for t in trajectories)
    failed = sum(call.outcome is Outcome.FAILED for call in calls)
    written = [s for t in trajectories for s in t.segments if s.author is Author.POLICY]
    return {
        "reward_mean": sum(rewards) / max(len(rewards), 1),
        "em": sum(e for e in graded if e is not None) / max(len(graded), 1),
        "calls_mean": sum(t.executed_calls for t in trajectories) / count,
        "policy_tokens_mean": sum(len(s.ids) for s in written) / count,
        "format_rate": sum(t.well_formed for t in trajectories) / count,
        "ungradable_rate": sum(t.reward is None for t in trajectories) / count,
        "tool_failure_rate": failed / max(len(calls), 1),
        **{f"status/{s.value}": status[s] / count for s in Status},
    }
