"""Reinforcement learning: rollouts in groups, rewards, advantages, one shared optimiser step."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, isfinite
from typing import Any, Protocol

from fieldcraft.algos.losses import Surrogate
from fieldcraft.config.stages import Rl
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.records.tool_use import tool_use
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.rollout.loop import Policy, Simulator, rollout, rollouts
from fieldcraft.rollout.simulators import PolicySimulator
from fieldcraft.train.batch import Unit, to_sample
from fieldcraft.train.credit import Scored, assign_advantages
from fieldcraft.train.critic import Critic
from fieldcraft.train.loop import Row
from fieldcraft.train.lora import Adapter
from fieldcraft.train.stages.sft import draw
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Author, Engine, Outcome, Status, Task, Trajectory, UserError

# Metrics that are means over the tokens trained on; those of equal groups have no part in them.
OF_TRAINED = (
    *("entropy", "ratio", "clip_fraction", "sampler_gap", "kl_ref", "llds"),
    *("importance", "rejected"),
)
Group = Sequence[Trajectory]


class Reference(Protocol):
    """What a KL term is taken to."""

    def fill_logprobs(self, units: Sequence[Unit], field: str, temperature: float) -> None: ...


class AdapterStart:
    """The reference of a trainer with an adapter: the same model with the adapter as it is now, so
    there is no second copy of the model."""

    def __init__(self, trainer: Trainer, adapter: Adapter) -> None:
        self.trainer = trainer
        self.adapter = adapter
        adapter.keep_start()

    def fill_logprobs(self, units: Sequence[Unit], field: str, temperature: float) -> None:
        with self.adapter.at_start():
            self.trainer.fill_logprobs(units, field, temperature)


class TrainableEngine(Engine, Protocol):
    """An engine that shares the trainer's weights."""

    def bump_version(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RlStage:
    """Everything a step of reinforcement learning needs.

    `reference` is needed only for a KL term, `critic` for `baseline: critic`, `frozen`, an engine,
    for `simulator: frozen`, `remote`, which writes observations, for `simulator: endpoint`.
    `fidelity` measures the rollouts of a simulated step.
    Raises UserError where one of them or the reward that `accuracy` names is missing.
    """

    settings: Rl
    tasks: Sequence[Task]
    env: ToolEnvironment
    engine: TrainableEngine
    rubric: Rubric
    trainer: Trainer
    reference: Reference | None
    critic: Critic | None = None
    frozen: TrainableEngine | None = None
    remote: Simulator | None = None
    fidelity: Callable[[Sequence[Trajectory]], Row] = lambda _: {}
    seed: int

    def __post_init__(self) -> None:
        s = self.settings
        if (s.baseline == "critic") != (self.critic is not None):
            raise UserError("a critic belongs to baseline: critic, and only there: give both.")
        if s.kl_coef and self.reference is None:
            raise UserError("kl_coef needs a reference: give the model that the KL is taken to.")
        lacks = {"frozen": self.frozen is None, "endpoint": self.remote is None}
        if lacks.get(s.simulator):
            raise UserError(f"simulator: {s.simulator} needs its model: give frozen or remote.")
        if s.keep_groups == "mixed-accuracy" and s.accuracy not in self.rubric.names:
            raise UserError(
                f"keep_groups: mixed-accuracy looks at the reward '{s.accuracy}': put it into the"
                " rubric, with weight 0 if it is only to be looked at."
            )

    def step(self, number: int) -> Row:
        """One step: sample groups, score them, and train on what their members differ in."""
        s = self.settings
        groups, flat, batches = self._groups(number)
        # All is sampled: the caches make room for training. In a step without training too, for a
        # run that goes on after it has no cached sessions either.
        self.engine.bump_version()
        if self.frozen is not None:
            self.frozen.bump_version()
        row = rollout_metrics(flat)
        check_tools(flat, number, s.max_tool_failures, self.remote is not None)
        units, total = self._units(groups)
        row |= {
            "tokens": sum(len(t.ids) for t in flat),
            "equal_groups": sum(map(_equal, groups)) / max(len(groups), 1),
            "groups_kept": len(groups),
            "batches": batches,
        }
        if simulates(s, number):
            row |= self.fidelity(flat)
        if units:
            row |= self._train(units, total, number)
        return row

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the policy."""
        critic = self.critic.state_dict() if self.critic else {}
        return {"rubric": self.rubric.state_dict(), "critic": critic}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rubric.load_state_dict(state["rubric"])
        if self.critic:
            self.critic.load_state_dict(state["critic"])

    # -- rollouts -------------------------------------------------------------------------------

    def _groups(self, number: int) -> tuple[list[Group], list[Trajectory], int]:
        """The step's groups, all that was sampled for them, and in how many batches.

        Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): groups that teach nothing are
        replaced by those of further questions, until the step is full or `max_batches` are sampled;
        then it goes on with what there is. Every step owns `max_batches` batches of questions,
        whether it uses them or not, so what it sees follows from its number alone.
        """
        s = self.settings
        most = 1 if s.keep_groups == "all" else s.max_batches
        kept: list[Group] = []
        flat: list[Trajectory] = []
        for batch in range(most):
            chosen = draw(self.seed, number * most + batch, len(self.tasks), s.questions)
            found = asyncio.run(self._sample([self.tasks[i] for i in chosen], number, batch))
            for group in found:
                self.rubric.score(group)
            flat += [trajectory for group in found for trajectory in group]
            kept += filter(self._teaches, found)
            if len(kept) >= s.questions:
                break
        return kept[: s.questions], flat, batch + 1

    async def _sample(self, tasks: Sequence[Task], number: int, batch: int) -> list[Group]:
        s = self.settings
        policy = Policy(engine=self.engine, temperature=s.temperature, seed=self.seed)
        simulator = self._simulator(policy) if simulates(s, number) else None
        first = batch * s.questions
        jobs = [
            (task, f"{number}/{p}/{g}")
            for p, task in enumerate(tasks, start=first)
            for g in range(s.group)
        ]
        done = await rollouts(
            jobs, lambda t, key: rollout(t, policy, self.env, key, simulator), len(jobs)
        )
        await self.rubric.prepare(done)
        return [done[p * s.group : (p + 1) * s.group] for p in range(len(tasks))]

    def _simulator(self, policy: Policy) -> Simulator:
        """Who writes the observations. A frozen model samples as the policy does, in an engine with
        sessions of its own."""
        return self.remote or PolicySimulator(replace(policy, engine=self.frozen or policy.engine))

    def _teaches(self, group: Group) -> bool:
        """Whether dynamic sampling keeps a group: some of its graded rollouts are right and some
        wrong, or their rewards differ (which also keeps what OTC has to say about groups in which
        all are right)."""
        s = self.settings
        if s.keep_groups == "mixed-accuracy":
            scores = [t.rewards[s.accuracy] for t in group if t.reward is not None]
            return 0 < scores.count(1.0) < len(scores) - scores.count(None)
        return s.keep_groups == "all" or not _equal(group)

    # -- training -------------------------------------------------------------------------------

    def _units(self, groups: Sequence[Group]) -> tuple[list[Unit], float]:
        """Samples with advantages, and what the loss is divided by. A group without a gradient is
        counted in the divisor and left out of the computation."""
        s = self.settings
        scored = [
            [
                Scored(to_sample(t, {Author.POLICY} if self._trains(t) else ()), t.reward)
                for t in group
                if t.reward is not None
            ]
            for group in groups
        ]
        trained = [m.sample for members in scored for m in members if m.sample.weight.any()]
        total = float(sum(sample.weight.sum() for sample in trained))
        if s.loss_weight == "sequence":
            total = float(len(trained))
        elif s.loss_weight == "constant":
            total = float(len(trained) * self.env.budget.total_tokens)
        scored = [
            members
            for group, members in zip(groups, scored, strict=True)
            if not (_equal(group) and self._equal_is_still())
        ]
        units: list[Unit] = [
            (m.sample,) for members in scored for m in members if m.sample.weight.any()
        ]
        if units:
            self._fill(units)
        assign_advantages(scored, s)
        if s.loss_weight == "sequence":
            for (sample,) in units:
                sample.weight /= sample.weight.sum()
        return units, total

    def _trains(self, trajectory: Trajectory) -> bool:
        return self.settings.train_truncated or trajectory.status is not Status.TRUNCATED

    def _equal_is_still(self) -> bool:
        """Whether a group of equal rewards has exactly no gradient."""
        s = self.settings
        compared = s.baseline in ("group", "others") and s.scale != "batch"
        return compared and not (s.kl_coef or s.entropy_coef or s.llds_coef)

    def _fill(self, units: Sequence[Unit]) -> None:
        """What the samples have to know of the models as they stand before the step."""
        s = self.settings
        if s.importance_cap is not None or s.reject is not None:
            self.trainer.fill_logprobs(units, "old_logp", s.temperature)
        if self.reference is not None:
            self.reference.fill_logprobs(units, "ref_logp", s.temperature)
        if self.critic is not None:
            self.critic.fill_values(units)

    def _train(self, units: list[Unit], total: float, number: int) -> Row:
        """All optimiser steps of this sampling step; metrics are means over them. They share one
        learning rate: the schedule counts sampling steps. So do their losses the divisor, cut into
        equal parts: a token weighs the same, whichever mini-batch it falls into."""
        s = self.settings
        objective = surrogate(s)
        rows: list[Row] = []
        for part, share in self._parts(units, number):
            self.trainer.done = number
            divisor = total * share
            row = self.trainer.step(part, objective, divisor, s.temperature)
            trained = sum(float(sample.weight.sum()) for unit in part for sample in unit)
            row |= {name: row[name] * divisor / trained for name in OF_TRAINED if name in row}
            if self.critic is not None:
                self.critic.done = number
                row |= {f"critic/{k}": v for k, v in self.critic.step(part, divisor).items()}
            rows.append(row)
        return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}

    def _parts(self, units: list[Unit], number: int) -> Iterator[tuple[list[Unit], float]]:
        """(mini-batch, its share of an epoch), dealt anew in every epoch."""
        s = self.settings
        count = min(s.minibatches, len(units))
        for epoch in range(s.epochs):
            dealt = list(units)
            if count > 1:
                random.Random(f"{self.seed}:{number}:{epoch}").shuffle(dealt)
            for part in range(count):
                yield dealt[part::count], 1 / count


def simulates(s: Rl, number: int) -> bool:
    """Whether the observations of a step are simulated. In a mixed stage that follows from the
    step's number alone: of the first n steps, n * simulated_share are, rounded up."""
    if s.observations != "mixed":
        return s.observations == "simulated"
    share = Fraction(s.simulated_share).limit_denominator(1000)  # 5/6, not the float beside it
    return ceil((number + 1) * share) > ceil(number * share)


def surrogate(s: Rl) -> Surrogate:
    """The loss of a stage."""
    return Surrogate(
        ratio=s.ratio,
        clip=s.clip,
        clip_low=s.clip_low,
        clip_high=s.clip_high,
        dual_clip=s.dual_clip,
        importance=s.importance,
        importance_cap=s.importance_cap,
        reject=s.reject,
        reject_low=s.reject_low,
        reject_high=s.reject_high,
        kl_coef=s.kl_coef if s.kl_in == "loss" else 0.0,
        entropy_coef=s.entropy_coef,
        llds_coef=s.llds_coef,
    )


def _equal(group: Group) -> bool:
    """Whether the rollouts that could be graded all have the same reward."""
    return len({t.reward for t in group if t.reward is not None}) < 2


def check_tools(
    trajectories: Sequence[Trajectory], number: int, most: float, simulated_too: bool = False
) -> None:
    """A tool that practically never answers would make the whole run meaningless.

    Raises UserError if more than the share `most` of at least one real call a rollout failed. A
    malformed call is the policy's failure: its tool was not asked, so it does not count. Simulated
    calls count where a remote model, which may fail as a tool does, simulates (`simulated_too`).
    """
    calls = [c for t in trajectories for c in t.calls if c.outcome.executed]
    calls = [call for call in calls if simulated_too or not call.simulated]
    failed = sum(call.outcome is Outcome.FAILED for call in calls)
    if len(calls) >= len(trajectories) and failed > most * len(calls):
        raise UserError(
            f"{failed} of the {len(calls)} tool calls of step {number} failed: check the search"
            " server or the tool."
        )


def correct_logp(trajectories: Sequence[Trajectory]) -> float | None:
    """Mean log-probability, in nats, of the tokens that the policy wrote in right rollouts, as they
    were sampled; None where no rollout is right. When it falls step by step, a collapse is on its
    way (arXiv 2512.04220)."""
    right = [t for t in trajectories if t.rewards.get("em") == 1.0]
    found = [
        logp
        for trajectory in right
        for segment in trajectory.segments
        if segment.author is Author.POLICY
        for logp in segment.logprobs
        if isfinite(logp)
    ]
    return sum(found) / len(found) if found else None


def rollout_metrics(trajectories: Sequence[Trajectory]) -> Row:
    """Means and rates of a step's rollouts. Truncated, unanswered, failed and ungradable ones are
    separate rates, so that none can hide in another; see `tool_use` for those of calls."""
    count = len(trajectories)
    rewards = [t.reward for t in trajectories if t.reward is not None]
    graded = [t.rewards["em"] for t in trajectories if t.rewards.get("em") is not None]
    status = Counter(t.status for t in trajectories)
    use = tool_use(trajectories)
    written = [s for t in trajectories for s in t.segments if s.author is Author.POLICY]
    return {
        "reward_mean": sum(rewards) / max(len(rewards), 1),
        "em": sum(e for e in graded if e is not None) / max(len(graded), 1),
        "correct_logp_mean": correct_logp(trajectories),
        "policy_tokens_mean": sum(len(s.ids) for s in written) / count,
        "format_rate": sum(t.well_formed for t in trajectories) / count,
        "ungradable_rate": sum(t.reward is None for t in trajectories) / count,
        "tool_failure_rate": use["call_failed_rate"] or 0.0,
        **use,
        **{f"status/{s.value}": status[s] / count for s in Status},
    }
