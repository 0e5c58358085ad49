"""Learning from groups of rollouts: advantages, and the optimiser steps of one sampling step.

It knows no tools and no engine: `sampler.py` does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fieldcraft.algos.losses import LIMIT, Surrogate
from fieldcraft.config.rl import Rl
from fieldcraft.records.chains import chains, ids_of
from fieldcraft.records.tool_use import is_void
from fieldcraft.train.batch import Floats, Sample, Unit, to_samples
from fieldcraft.train.credit import Scored, assign_advantages
from fieldcraft.train.drift import LOG_RATIO
from fieldcraft.train.learning import Learning, Reference, Valuing, note
from fieldcraft.train.sampler import Group, equal
from fieldcraft.train.stages.base import Row
from fieldcraft.types import Author, Status, Trajectory

# Metrics that are means over the tokens trained on; those of equal groups have no part in them.
OF_TRAINED = (
    *("entropy", "ratio", "clip_fraction", "kl_ref", "llds"),
    *("importance", "rejected", "teacher_kl", LOG_RATIO),
)
GAP = "sampler_gap"


@dataclass(frozen=True, slots=True)
class Told:
    """Numbers for each token of a rollout, 0 for those that are not trained. `entropies` and
    `ratios` are None where the rollout had no part in an optimiser step."""

    advantages: Floats
    entropies: Floats | None = None
    ratios: Floats | None = None


@dataclass(frozen=True, slots=True)
class Learned:
    """The metrics of a step, and what it knew of the tokens of every rollout, by group: up to the
    last token that was trained; None where a rollout could not be graded."""

    row: Row
    tokens: list[list[Told | None]]


@dataclass(frozen=True, kw_only=True)
class PolicyLearner:
    """A learner that turns the rollouts of a step into optimiser steps.

    `reference` is needed only for a KL term, `critic` for `baseline: critic`. `total_tokens` is the
    budget of a rollout, by which `loss_weight: constant` divides.
    """

    settings: Rl
    trainer: Learning
    reference: Reference | None
    critic: Valuing | None
    total_tokens: int
    seed: int

    def learn(self, groups: Sequence[Group], number: int) -> Learned:
        """Run all optimiser steps of sampling step `number`; metrics are means over them, and empty
        if there is nothing to learn."""
        scored = [[self._scored(t) for t in group] for group in groups]
        graded = [[member for member in members if member is not None] for members in scored]
        units, total = self._units(groups, graded)
        row = self._train(units, total, number) if units else {}
        if row:
            row["right_negative_rate"] = right_negative_rate(graded)
        tokens = [
            [
                None if member is None else told(member, trajectory)
                for member, trajectory in zip(members, group, strict=True)
            ]
            for members, group in zip(scored, groups, strict=True)
        ]
        return Learned(row, tokens)

    def _scored(self, trajectory: Trajectory) -> Scored | None:
        if trajectory.reward is None:
            return None
        return Scored(self._samples(trajectory), trajectory.reward, bool(trajectory.right))

    def _units(
        self, groups: Sequence[Group], scored: list[list[Scored]]
    ) -> tuple[list[Unit], float]:
        """Return the unit of each rollout, with advantages, and what the loss is divided by. A
        group without a gradient is counted in the divisor and left out of the computation.

        A rollout weighs the same in one chain or in several: `sequence` gives it the weight 1 over
        the tokens of all its chains, and every divisor counts tokens or rollouts, never chains.
        """
        s = self.settings
        trained = [m.trained for members in scored for m in members if m.trained]
        total = sum(map(_weight, trained))
        if s.loss_weight == "sequence":
            total = float(len(trained))
        elif s.loss_weight == "constant":
            total = float(len(trained) * self.total_tokens)
        scored = [
            members
            for group, members in zip(groups, scored, strict=True)
            if not (equal(group) and self._equal_is_still())
        ]
        units = [m.trained for members in scored for m in members if m.trained]
        if units:
            self._fill(units)
        self._assign(scored)
        if s.loss_weight == "sequence":
            for unit in units:
                whole = _weight(unit)
                for sample in unit:
                    sample.weight /= whole
        return units, total

    def _samples(self, trajectory: Trajectory) -> Unit:
        """Return the samples of a rollout, with weight 0 everywhere if it is not trained on."""
        left_out = (
            trajectory.status is Status.TRUNCATED and not self.settings.train_truncated
        ) or (is_void(trajectory) and not self.settings.train_void)
        return to_samples(trajectory, () if left_out else {Author.POLICY})

    def _equal_is_still(self) -> bool:
        """Return whether a group of equal rewards has exactly no gradient."""
        s = self.settings
        compared = s.baseline in ("group", "others") and s.scale != "batch"
        return compared and not (s.kl_coef or s.entropy_coef or s.llds_coef)

    def _fill(self, units: Sequence[Unit]) -> None:
        """Fill the samples with what they have to know of the models as they are before the
        step."""
        s = self.settings
        if s.importance_cap is not None or s.reject is not None:
            self.trainer.fill_logprobs(units, "old_logp", s.temperature)
        if self.reference is not None:
            self.reference.fill_logprobs(units, "ref_logp", s.temperature)
        if self.critic is not None:
            self.critic.fill_values(units)

    def _assign(self, groups: Sequence[Sequence[Scored]]) -> None:
        """Assign advantages to all samples, from rewards and from what was filled."""
        assign_advantages(groups, self.settings)

    def _train(self, units: list[Unit], total: float, number: int) -> Row:
        """Run all optimiser steps of a sampling step. They share one learning rate, because the
        schedule counts sampling steps. Their losses share the divisor, cut into equal parts: a
        token weighs the same, whichever mini-batch it falls into."""
        rows: list[Row] = []
        for part, share in self._parts(units, number):
            self.trainer.done = number
            divisor = total * share
            row = as_means(self._step(part, divisor), part, divisor, number)
            if self.critic is not None:
                self.critic.done = number
                row |= {f"critic/{k}": v for k, v in self.critic.step(part, divisor).items()}
            rows.append(row)
        self.trainer.drop_gradients()
        if self.critic is not None:
            self.critic.drop_gradients()
        names = [name for name in rows[0] if name not in (GAP, LOG_RATIO)]
        means = {name: sum(row[name] for row in rows) / len(rows) for name in names}
        # Later ones compare with weights that have changed.
        return means | {name: rows[0][name] for name in {GAP, LOG_RATIO} & rows[0].keys()}

    def _step(self, part: Sequence[Unit], divisor: float) -> Row:
        """Run one optimiser step of the policy."""
        s = self.settings
        return self.trainer.step(part, surrogate(s), divisor, s.temperature, look=note)

    def _parts(self, units: list[Unit], number: int) -> Iterator[tuple[list[Unit], float]]:
        """Yield (mini-batch, its share of an epoch), dealt anew in every epoch."""
        s = self.settings
        count = min(s.minibatches, len(units))
        for epoch in range(s.epochs):
            dealt = list(units)
            if count > 1:
                random.Random(f"{self.seed}:{number}:{epoch}").shuffle(dealt)
            for part in range(count):
                yield dealt[part::count], 1 / count


def told(member: Scored, trajectory: Trajectory) -> Told:
    """Return the numbers known of a rollout's tokens after a step. The ratio is that of each token,
    also where the loss takes that of the sequence."""
    advantages = along(trajectory, [sample.advantage for sample in member.samples])
    if not any(sample.entropy.size for sample in member.samples):
        return Told(advantages)
    trained = [sample if sample.entropy.size else blank(sample) for sample in member.samples]
    ratios = [
        np.where(s.weight > 0, np.exp((s.new_logp - s.old_logp).clip(-LIMIT, LIMIT)), 0)
        for s in trained
    ]
    entropies = [s.entropy for s in trained]
    return Told(advantages, along(trajectory, entropies), along(trajectory, ratios))


def blank(sample: Sample) -> Sample:
    """Return a chain without a trained token, of which nothing was said."""
    zeros = np.zeros(len(sample), np.float32)
    return replace(sample, entropy=zeros, new_logp=zeros)


def along(trajectory: Trajectory, values: Sequence[Floats]) -> Floats:
    """Return a number for each token of a rollout, in the order of its ids, from those of each
    chain."""
    *before, last = zip(values, chains(trajectory), strict=True)
    padded = [np.pad(found, (0, len(ids_of(chain)) - len(found))) for found, chain in before]
    return np.concatenate([*padded, last[0]])


def as_means(row: Row, part: Sequence[Unit], divisor: float, version: int) -> Row:
    """Return the metrics of an optimiser step whose sums over tokens were divided by `divisor`, as
    means over the trained tokens. That of GAP is over the tokens that this version of the policy
    sampled, and is left out where there are none."""
    counts = dict.fromkeys(OF_TRAINED, sum(map(_weight, part)))
    counts[GAP] = sum(_fresh_weight(unit, version) for unit in part)
    kept = {name: value for name, value in row.items() if counts.get(name) != 0}
    return {n: v * divisor / counts[n] if n in counts else v for n, v in kept.items()}


def _weight(unit: Unit) -> float:
    return float(sum(sample.weight.sum() for sample in unit))


def _fresh_weight(unit: Unit, version: int) -> float:
    """Return the weight of the tokens that a version of the policy sampled."""
    return float(sum(sample.weight[sample.version == version].sum() for sample in unit))


def right_negative_rate(groups: Sequence[Sequence[Scored]]) -> float:
    """Return the share of right rollouts whose advantage is negative, as a price on calls can make
    it."""
    right = [member for group in groups for member in group if member.right]
    negative = sum(member.gather("advantage").sum() < 0 for member in right)
    return float(negative) / max(len(right), 1)


def surrogate(s: Rl) -> Surrogate:
    """Make the loss of a stage."""
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
