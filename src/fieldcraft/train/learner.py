"""Learning from groups of rollouts: the optimizer steps of one sampling step.

It is independent of tools and engines, which `sampler.py` handles. A log message reports the drift
of the policy since its tokens were sampled.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fieldcraft.config.rl import Rl
from fieldcraft.records.chains import concat_ids, split_chains
from fieldcraft.records.metrics import METRICS
from fieldcraft.records.tool_metrics import has_void_turn
from fieldcraft.train.advantages import ScoredRollout, StepBatch
from fieldcraft.train.algorithm import Algorithm, StepModels
from fieldcraft.train.batch import Float32Array, Sample, SampleUnit, to_samples
from fieldcraft.train.losses import MAX_LOG_RATIO
from fieldcraft.train.protocols import store_scores
from fieldcraft.train.sampler import RolloutGroup, has_equal_rewards
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.types import Author, Status, Trajectory, UserError

SAMPLER_LOGP_DIFF_KEY = "sampler_logp_diff"
LOG_RATIO_KEY = "log_ratio_abs"  # mean |log pi - log pi_sampler| of the trained tokens, in nats
# At this drift, token-level importance weights leave an error of a sixth of the gradient
# (docs/lab-notes/asynchronous.md).
DRIFT_THRESHOLD_NATS = 0.05
MIN_DRIFT_STEPS = 5  # steps above DRIFT_THRESHOLD_NATS before the message


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

    `total_tokens` is the token budget of a rollout, the divisor of `loss_aggregation: constant`.
    """

    settings: Rl
    algorithm: Algorithm
    models: StepModels
    total_tokens: int
    seed: int

    def learn(self, groups: Sequence[RolloutGroup], number: int) -> LearnResult:
        """Run all optimizer steps of sampling step `number`; metrics are means over them, and empty
        if there is nothing to learn."""
        rollouts = [[self._score_rollout(t) for t in group] for group in groups]
        step = StepBatch([[r for r in members if r is not None] for members in rollouts])
        row = self._train(groups, step, number)
        if row:
            row["correct_negative_rate"] = compute_correct_negative_rate(step.rollouts)
        tokens = [
            [None if member is None else collect_token_stats(member) for member in members]
            for members in rollouts
        ]
        return LearnResult(row, tokens)

    def _score_rollout(self, trajectory: Trajectory) -> ScoredRollout | None:
        """Return a rollout with its samples, with weight 0 everywhere if it is not trained on; None
        if it lacks a reward that the algorithm needs, or failed before its first token."""
        if (trajectory.reward is None and self.algorithm.needs_rewards) or not trajectory.ids:
            return None
        is_excluded = (
            trajectory.status is Status.TRUNCATED and not self.settings.train_truncated
        ) or (has_void_turn(trajectory) and not self.settings.train_void)
        return ScoredRollout(
            trajectory, to_samples(trajectory, () if is_excluded else {Author.POLICY})
        )

    def _train(self, groups: Sequence[RolloutGroup], step: StepBatch, number: int) -> StepMetrics:
        """Train on the rollouts of a step. A group without a gradient is counted in the divisor of
        the loss but not computed.

        A rollout has the same weight regardless of its number of chains: `sequence` gives the
        tokens of all its chains the total weight 1, and every divisor counts tokens or rollouts,
        never chains.
        """
        aggregation = self.settings.loss_aggregation
        total = sum(map(_sum_weights, step.units))
        if aggregation == "sequence":
            total = float(len(step.units))
        elif aggregation == "constant":
            total = float(len(step.units) * self.total_tokens)
        if self.algorithm.skips_equal_rewards:
            pairs = zip(groups, step.groups, strict=True)
            step = StepBatch([members for group, members in pairs if not has_equal_rewards(group)])
        if not step.units:
            return {}
        scores = self.algorithm.prepare(step, self.models)
        self._assign_advantages(step)
        if aggregation == "sequence":
            for unit in step.units:
                unit_weight = _sum_weights(unit)
                for sample in unit:
                    sample.weight /= unit_weight
        return self._run_steps(step.units, total, number) | scores

    def _assign_advantages(self, step: StepBatch) -> None:
        """Assign an advantage to every token. Raises UserError for a wrong number of them."""
        advantage_T = self.algorithm.advantages(step)
        if advantage_T.shape != step.rollout_T.shape:
            raise UserError(
                f"the algorithm '{self.settings.algorithm}' returned advantages of the shape"
                f" {list(advantage_T.shape)} for {len(step.rollout_T)} tokens: return one for each"
                " token of rollout_T."
            )
        step.scatter(advantage_T, "advantage")

    def _run_steps(self, units: list[SampleUnit], total: float, number: int) -> StepMetrics:
        """Run all optimizer steps of a sampling step. They share one learning rate, because the
        schedule counts sampling steps. The divisor is split equally between their losses, so a
        token has the same weight in every mini-batch."""
        rows: list[StepMetrics] = []
        policy, critic = self.models.policy, self.models.critic
        loss, teacher = self.algorithm.loss(), self.algorithm.get_teacher(self.models)
        temperature = self.settings.temperature
        for minibatch, share in self._split_minibatches(units, number):
            policy.done = number
            divisor = total * share
            sums = policy.step(minibatch, loss, divisor, temperature, teacher, store_scores)
            row = average_per_token(sums, minibatch, divisor, number)
            if critic is not None:
                critic.done = number
                row |= {f"critic/{k}": v for k, v in critic.step(minibatch, divisor).items()}
            rows.append(row)
        policy.drop_gradients()
        if critic is not None:
            critic.drop_gradients()
        # Later mini-batches compare with changed weights.
        first = {n: rows[0][n] for n in (SAMPLER_LOGP_DIFF_KEY, LOG_RATIO_KEY) if n in rows[0]}
        names = [name for name in rows[0] if name not in first]
        return {name: sum(row[name] for row in rows) / len(rows) for name in names} | first

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


def collect_token_stats(rollout: ScoredRollout) -> TokenStats:
    """Return the token statistics of a rollout after a step. The ratio is per token, even if the
    loss uses the sequence ratio."""
    trajectory = rollout.trajectory
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


def compute_correct_negative_rate(rollouts: Sequence[ScoredRollout]) -> float:
    """Return the fraction of correct rollouts with a negative advantage, which a penalty on calls
    can cause."""
    correct = [rollout for rollout in rollouts if rollout.is_correct]
    negative = sum(rollout.gather("advantage").sum() < 0 for rollout in correct)
    return float(negative) / max(len(correct), 1)


def describe_drift(rows: Sequence[StepMetrics], settings: Rl, stage: str) -> str | None:
    """Return a log message at the row at which MIN_DRIFT_STEPS steps have exceeded
    DRIFT_THRESHOLD_NATS, if the sampler may be older than the trainer. None otherwise."""
    if not settings.asynchronous.max_staleness:
        return None
    drifted = [row for row in rows if row.get(LOG_RATIO_KEY, 0.0) > DRIFT_THRESHOLD_NATS]
    if len(drifted) != MIN_DRIFT_STEPS or drifted[-1] is not rows[-1]:
        return None
    mean = sum(row[LOG_RATIO_KEY] for row in drifted) / MIN_DRIFT_STEPS
    return (
        f"in {MIN_DRIFT_STEPS} steps of stage '{stage}' the log-probabilities of the tokens had"
        f" changed by {mean:.2f} nats on average since sampling ({LOG_RATIO_KEY}), which biases the"
        f" gradient: {_suggest_remedy(settings)}."
    )


def _suggest_remedy(settings: Rl) -> str:
    if (settings.sampler_is_cap, settings.sampler_reject) == (None, None):
        if not settings.uses_sampler_weight:
            return "set sampler_reject: token, which leaves such tokens out"
        return "set sampler_is_cap: 2, which corrects for it"
    if settings.sampler_is_level == "token" and settings.sampler_is_cap is not None:
        return "set sampler_is_level: sequence with sampler_is_cap: 5, or a lower optim.lr"
    return "set a lower optim.lr or async.max_staleness"
