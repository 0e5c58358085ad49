"""Learning from groups of rollouts: advantages, and the optimizer steps of one sampling step.

It is independent of tools and engines, which `sampler.py` handles.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fieldcraft.algos.losses import MAX_LOG_RATIO, PolicyGradientLoss
from fieldcraft.config.rl import Rl
from fieldcraft.records.chains import concat_ids, split_chains
from fieldcraft.records.metrics import METRICS
from fieldcraft.records.tool_metrics import has_void_turn
from fieldcraft.train.batch import Float32Array, Sample, SampleUnit, to_samples
from fieldcraft.train.credit import ScoredRollout, assign_advantages
from fieldcraft.train.drift import LOG_RATIO_KEY
from fieldcraft.train.protocols import ReferenceModel, TrainablePolicy, ValueModel, store_scores
from fieldcraft.train.sampler import RolloutGroup, has_equal_rewards
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.types import Author, Status, Trajectory

SAMPLER_LOGP_DIFF_KEY = "sampler_logp_diff"


@dataclass(frozen=True, slots=True)
class TokenStats:
    """Values for each token of a rollout, 0 for untrained ones. `entropies` and `ratios` are None
    if the rollout was not part of an optimizer step."""

    advantages: Float32Array
    entropies: Float32Array | None = None
    ratios: Float32Array | None = None


@dataclass(frozen=True, slots=True)
class LearnResult:
    """Metrics of a step, and token statistics of every rollout, by group, up to its last trained
    token. None for ungradable rollouts."""

    metrics: StepMetrics
    tokens: list[list[TokenStats | None]]


@dataclass(frozen=True, kw_only=True)
class PolicyLearner:
    """Learner that turns the rollouts of a step into optimizer steps.

    `reference` is needed only for a KL term, `critic` for `baseline: critic`. `total_tokens` is the
    token budget of a rollout, the divisor of `loss_aggregation: constant`.
    """

    settings: Rl
    trainer: TrainablePolicy
    reference: ReferenceModel | None
    critic: ValueModel | None
    total_tokens: int
    seed: int

    def learn(self, groups: Sequence[RolloutGroup], number: int) -> LearnResult:
        """Run all optimizer steps of sampling step `number`; metrics are means over them, and empty
        if there is nothing to learn."""
        rollouts = [[self._score_rollout(t) for t in group] for group in groups]
        graded_groups = [
            [member for member in members if member is not None] for members in rollouts
        ]
        units, total = self._prepare_units(groups, graded_groups)
        row = self._run_steps(units, total, number) if units else {}
        if row:
            row["correct_negative_rate"] = compute_correct_negative_rate(graded_groups)
        tokens = [
            [
                None if member is None else collect_token_stats(member, trajectory)
                for member, trajectory in zip(members, group, strict=True)
            ]
            for members, group in zip(rollouts, groups, strict=True)
        ]
        return LearnResult(row, tokens)

    def _score_rollout(self, trajectory: Trajectory) -> ScoredRollout | None:
        if trajectory.reward is None:
            return None
        return ScoredRollout(
            self._make_samples(trajectory), trajectory.reward, bool(trajectory.is_correct)
        )

    def _prepare_units(
        self, groups: Sequence[RolloutGroup], rollouts: list[list[ScoredRollout]]
    ) -> tuple[list[SampleUnit], float]:
        """Return the unit of each rollout, with advantages, and the divisor of the loss. A group
        without a gradient is counted in the divisor but not computed.

        A rollout has the same weight regardless of its number of chains: `sequence` gives the
        tokens of all its chains the total weight 1, and every divisor counts tokens or rollouts,
        never chains.
        """
        s = self.settings
        trained = [m.trained_samples for members in rollouts for m in members if m.trained_samples]
        total = sum(map(_sum_weights, trained))
        if s.loss_aggregation == "sequence":
            total = float(len(trained))
        elif s.loss_aggregation == "constant":
            total = float(len(trained) * self.total_tokens)
        rollouts = [
            members
            for group, members in zip(groups, rollouts, strict=True)
            if not (has_equal_rewards(group) and self._needs_reward_variance())
        ]
        units = [m.trained_samples for members in rollouts for m in members if m.trained_samples]
        if units:
            self._fill_samples(units)
        self._assign_advantages(rollouts)
        if s.loss_aggregation == "sequence":
            for unit in units:
                unit_weight = _sum_weights(unit)
                for sample in unit:
                    sample.weight /= unit_weight
        return units, total

    def _make_samples(self, trajectory: Trajectory) -> SampleUnit:
        """Return the samples of a rollout, with weight 0 everywhere if it is not trained on."""
        is_excluded = (
            trajectory.status is Status.TRUNCATED and not self.settings.train_truncated
        ) or (has_void_turn(trajectory) and not self.settings.train_void)
        return to_samples(trajectory, () if is_excluded else {Author.POLICY})

    def _needs_reward_variance(self) -> bool:
        """Return whether a group with equal rewards has a gradient of exactly 0."""
        s = self.settings
        is_group_relative = (
            s.baseline in ("group", "leave-one-out") and s.advantage_scale != "batch"
        )
        return is_group_relative and not (s.kl_coef or s.entropy_coef or s.llds_coef)

    def _fill_samples(self, units: Sequence[SampleUnit]) -> None:
        """Fill the samples with the log-probabilities and values of the models before the step."""
        s = self.settings
        if s.sampler_is_cap is not None or s.sampler_reject is not None:
            self.trainer.fill_logprobs(units, "old_logp", s.temperature)
        if self.reference is not None:
            self.reference.fill_logprobs(units, "ref_logp", s.temperature)
        if self.critic is not None:
            self.critic.fill_values(units)

    def _assign_advantages(self, groups: Sequence[Sequence[ScoredRollout]]) -> None:
        """Assign advantages to all samples, from rewards and the filled fields."""
        assign_advantages(groups, self.settings)

    def _run_steps(self, units: list[SampleUnit], total: float, number: int) -> StepMetrics:
        """Run all optimizer steps of a sampling step. They share one learning rate, because the
        schedule counts sampling steps. The divisor is split equally between their losses, so a
        token has the same weight in every mini-batch."""
        rows: list[StepMetrics] = []
        for minibatch, share in self._split_minibatches(units, number):
            self.trainer.done = number
            divisor = total * share
            row = average_per_token(self._run_step(minibatch, divisor), minibatch, divisor, number)
            if self.critic is not None:
                self.critic.done = number
                row |= {f"critic/{k}": v for k, v in self.critic.step(minibatch, divisor).items()}
            rows.append(row)
        self.trainer.drop_gradients()
        if self.critic is not None:
            self.critic.drop_gradients()
        names = [name for name in rows[0] if name not in (SAMPLER_LOGP_DIFF_KEY, LOG_RATIO_KEY)]
        means = {name: sum(row[name] for row in rows) / len(rows) for name in names}
        # Later mini-batches compare with changed weights.
        return means | {
            name: rows[0][name] for name in {SAMPLER_LOGP_DIFF_KEY, LOG_RATIO_KEY} & rows[0].keys()
        }

    def _run_step(self, minibatch: Sequence[SampleUnit], divisor: float) -> StepMetrics:
        """Run one optimizer step of the policy."""
        s = self.settings
        return self.trainer.step(
            minibatch, make_policy_loss(s), divisor, s.temperature, on_scores=store_scores
        )

    def _split_minibatches(
        self, units: list[SampleUnit], number: int
    ) -> Iterator[tuple[list[SampleUnit], float]]:
        """Yield (mini-batch, its share of an epoch), reshuffled in every epoch."""
        s = self.settings
        count = min(s.minibatches, len(units))
        for epoch in range(s.epochs):
            shuffled = list(units)
            if count > 1:
                random.Random(f"{self.seed}:{number}:{epoch}").shuffle(shuffled)
            for index in range(count):
                yield shuffled[index::count], 1 / count


def collect_token_stats(rollout: ScoredRollout, trajectory: Trajectory) -> TokenStats:
    """Return the token statistics of a rollout after a step. The ratio is per token, even if the
    loss uses the sequence ratio."""
    advantages = align_to_trajectory(trajectory, [sample.advantage for sample in rollout.samples])
    if not any(sample.entropy.size for sample in rollout.samples):
        return TokenStats(advantages)
    trained = [
        sample if sample.entropy.size else make_untrained_sample(sample)
        for sample in rollout.samples
    ]
    ratios = [
        np.where(
            s.weight > 0, np.exp((s.new_logp - s.old_logp).clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)), 0
        )
        for s in trained
    ]
    entropies = [s.entropy for s in trained]
    return TokenStats(
        advantages,
        align_to_trajectory(trajectory, entropies),
        align_to_trajectory(trajectory, ratios),
    )


def make_untrained_sample(sample: Sample) -> Sample:
    """Return a copy of a sample without trained tokens, with entropies and log-probabilities of
    0."""
    zeros = np.zeros(len(sample), np.float32)
    return replace(sample, entropy=zeros, new_logp=zeros)


def align_to_trajectory(trajectory: Trajectory, values: Sequence[Float32Array]) -> Float32Array:
    """Return one value per token of a rollout, in the order of its ids, from the values of each
    chain."""
    *before, last = zip(values, split_chains(trajectory), strict=True)
    padded = [
        np.pad(chain_values, (0, len(concat_ids(chain)) - len(chain_values)))
        for chain_values, chain in before
    ]
    return np.concatenate([*padded, last[0]])


def average_per_token(
    row: StepMetrics, minibatch: Sequence[SampleUnit], divisor: float, version: int
) -> StepMetrics:
    """Convert the metrics of an optimizer step from sums over tokens divided by `divisor` to means
    over the trained tokens; tokens of groups with equal rewards are excluded. SAMPLER_LOGP_DIFF_KEY
    is a mean over the tokens that this version of the policy sampled, and is omitted if there are
    none."""
    per_token = [metric.key for metric in METRICS.values() if metric.per_token]
    counts = dict.fromkeys(per_token, sum(map(_sum_weights, minibatch)))
    counts[SAMPLER_LOGP_DIFF_KEY] = sum(_sum_version_weights(unit, version) for unit in minibatch)
    defined = {name: value for name, value in row.items() if counts.get(name) != 0}
    return {n: v * divisor / counts[n] if n in counts else v for n, v in defined.items()}


def _sum_weights(unit: SampleUnit) -> float:
    return float(sum(sample.weight.sum() for sample in unit))


def _sum_version_weights(unit: SampleUnit, version: int) -> float:
    """Return the total weight of the tokens that a policy version sampled."""
    return float(sum(sample.weight[sample.version == version].sum() for sample in unit))


def compute_correct_negative_rate(groups: Sequence[Sequence[ScoredRollout]]) -> float:
    """Return the fraction of correct rollouts with a negative advantage, which a penalty on calls
    can cause."""
    correct = [member for group in groups for member in group if member.is_correct]
    negative = sum(member.gather("advantage").sum() < 0 for member in correct)
    return float(negative) / max(len(correct), 1)


def make_policy_loss(s: Rl) -> PolicyGradientLoss:
    """Make the policy loss of a stage."""
    return PolicyGradientLoss(
        ratio=s.ratio_level,
        clip=s.clip_mode,
        clip_low=s.clip_low,
        clip_high=s.clip_high,
        dual_clip=s.dual_clip,
        importance=s.sampler_is_level,
        importance_cap=s.sampler_is_cap,
        reject=s.sampler_reject,
        reject_low=s.sampler_reject_low,
        reject_high=s.sampler_reject_high,
        kl_coef=s.kl_coef if s.kl_placement == "loss" else 0.0,
        entropy_coef=s.entropy_coef,
        llds_coef=s.llds_coef,
    )
