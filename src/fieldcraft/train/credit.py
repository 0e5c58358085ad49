"""Credit assignment: token advantages from rewards.

A rollout's reward is assigned to its last token. The tokens of a folded rollout are the
concatenation of all its chains, so its return flows back through its summaries. With `kl_placement:
reward` every token is also penalised by the policy's log-ratio to the reference. Only the policy's
tokens count; observations are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fieldcraft.algos import advantages as adv
from fieldcraft.algos.losses import MAX_LOG_RATIO
from fieldcraft.config.rl import Rl
from fieldcraft.train.batch import SampleUnit


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """Graded rollout, with one sample per chain. If the samples have no weight, it is not trained
    on, but its reward still counts in its group."""

    samples: SampleUnit
    reward: float
    is_correct: bool = False

    @property
    def trained_samples(self) -> SampleUnit:
        """Chains with trained tokens."""
        return tuple(sample for sample in self.samples if sample.weight.any())

    def gather(self, name: str) -> adv.Float64Array:
        """Return a field of the samples at the trained tokens of all chains."""
        values = [getattr(s, name)[s.weight > 0].astype(float) for s in self.trained_samples]
        return np.concatenate([np.zeros(0), *values])

    def scatter(self, values_T: adv.Float64Array, name: str) -> None:
        """Write a value for each trained token to a field of the samples, the inverse of `gather`;
        other tokens get 0."""
        start = 0
        for sample in self.samples:
            end = start + int((sample.weight > 0).sum())
            setattr(sample, name, sample.scatter(values_T[start:end]))
            start = end


def assign_advantages(groups: Sequence[Sequence[ScoredRollout]], settings: Rl) -> None:
    """Fill `advantage` of every sample, and `target` if there is a critic.

    The samples' `value` (with a critic) and their `old_logp` and `ref_logp` (with `kl_placement:
    reward`) must be filled. Without a critic A_t = (G_t - b) / s: the return from t on, minus the
    baseline, divided by the group's standard deviation if configured; b and s are computed from
    full returns.

    With `advantage_floor: right` no advantage of a correct rollout is below 0, so a penalty on
    calls cannot make a correct answer less likely (the sign reversal of arXiv 2601.14696).
    """
    rollouts = [rollout for group in groups for rollout in group]
    advantages: list[adv.Float64Array] = []
    for group in groups:
        rewards = [compute_token_rewards(rollout, settings) for rollout in group]
        if settings.baseline == "critic":
            for rollout, rewards_T in zip(group, rewards, strict=True):
                critic, value_T = settings.critic, rollout.gather("value")
                advantages.append(
                    adv.gae(rewards_T, value_T, gamma=critic.gamma, lam=critic.gae_lambda)
                )
                rollout.scatter(advantages[-1] + value_T, "target")
            continue
        returns = [
            float(rewards_T.sum()) if rewards_T.size else rollout.reward
            for rollout, rewards_T in zip(group, rewards, strict=True)
        ]
        baselines = _compute_baselines(returns, settings)
        scale = adv.group_std(returns) if settings.advantage_scale == "group" and returns else 1.0
        advantages += [
            (adv.discounted_returns(rewards_T) - b) / scale
            for rewards_T, b in zip(rewards, baselines, strict=True)
        ]
    if settings.advantage_scale == "batch":
        advantages = adv.whiten(advantages)
    for rollout, advantages_T in zip(rollouts, advantages, strict=True):
        floor = 0.0 if rollout.is_correct and settings.advantage_floor == "correct" else -np.inf
        rollout.scatter(advantages_T.clip(min=floor), "advantage")


def compute_token_rewards(rollout: ScoredRollout, settings: Rl) -> adv.Float64Array:
    """Return the reward of each of the policy's tokens; empty if the rollout is not trained on."""
    rewards_T = np.zeros_like(rollout.gather("weight"))
    if settings.kl_placement == "reward" and settings.kl_coef:
        log_ratio_T = rollout.gather("old_logp") - rollout.gather("ref_logp")
        rewards_T -= settings.kl_coef * log_ratio_T.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if rewards_T.size:
        rewards_T[-1] += rollout.reward
    return rewards_T


def _compute_baselines(rewards: Sequence[float], settings: Rl) -> Sequence[float]:
    if not rewards or settings.baseline == "none":
        return [0.0] * len(rewards)
    if settings.baseline == "leave-one-out":
        return adv.leave_one_out_baseline(rewards)
    return adv.group_mean_baseline(rewards)
