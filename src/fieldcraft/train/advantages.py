"""Advantages of tokens from rewards.

A rollout's reward is assigned to its last token. The tokens of a folded rollout are the
concatenation of all its chains, so its return flows back through its summaries. With `kl_placement:
reward` every token is also penalised by the policy's log-ratio to the reference.

Shape letters: R rollouts of a step, in the order of their groups; G rollouts of a group; T tokens
that the policy wrote and that are trained on, of a rollout or of all rollouts. Observation tokens
are excluded: the token after an observation directly follows the token before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, pstdev

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldcraft.config.rl import Rl
from fieldcraft.train.batch import SampleUnit, index_turns
from fieldcraft.train.losses import MAX_LOG_RATIO
from fieldcraft.types import Trajectory

Float64Array = NDArray[np.float64]
EPSILON = 1e-6  # added to standard deviations


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """Rollout of a step, with one sample per chain. If the samples have no weight, it is not
    trained on, but its reward still counts in its group."""

    trajectory: Trajectory
    samples: SampleUnit

    @property
    def reward(self) -> float:
        """Reward; 0 for an ungradable rollout, which is trained on only without rewards."""
        return self.trajectory.reward or 0.0

    @property
    def is_correct(self) -> bool:
        return bool(self.trajectory.is_correct)

    @property
    def trained_samples(self) -> SampleUnit:
        """Chains with trained tokens."""
        return tuple(sample for sample in self.samples if sample.weight.any())

    @property
    def num_trained_tokens(self) -> int:
        return sum(int((sample.weight > 0).sum()) for sample in self.samples)

    def gather(self, name: str) -> Float64Array:
        """Return a field of the samples at the trained tokens of all chains."""
        values = [getattr(s, name)[s.weight > 0].astype(float) for s in self.trained_samples]
        return np.concatenate([np.zeros(0), *values])

    def scatter(self, values_T: NDArray[np.floating], name: str) -> None:
        """Write a value for each trained token to a field of the samples, the inverse of `gather`;
        other tokens get 0."""
        start = 0
        for sample in self.samples:
            end = start + int((sample.weight > 0).sum())
            setattr(sample, name, sample.scatter(values_T[start:end]))
            start = end


@dataclass(frozen=True)
class StepBatch:
    """Rollouts of a step, in groups of one question each, and flat tensors of them."""

    groups: Sequence[Sequence[ScoredRollout]]

    @cached_property
    def rollouts(self) -> list[ScoredRollout]:
        return [rollout for group in self.groups for rollout in group]

    @cached_property
    def units(self) -> list[SampleUnit]:
        """Trained samples of each rollout that has some."""
        return [r.trained_samples for r in self.rollouts if r.trained_samples]

    @property
    def reward_R(self) -> Tensor:
        """Reward of each rollout."""
        return torch.tensor([r.reward for r in self.rollouts], dtype=torch.float64)

    @property
    def group_R(self) -> Tensor:
        """Index of each rollout's group."""
        return torch.repeat_interleave(torch.tensor([len(group) for group in self.groups]))

    @property
    def rollout_T(self) -> Tensor:
        """Index of each token's rollout."""
        return torch.repeat_interleave(torch.tensor(self._sizes))

    @property
    def turn_T(self) -> Tensor:
        """Index of each token's turn, which differs between rollouts."""
        samples = [sample for rollout in self.rollouts for sample in rollout.samples]
        return torch.from_numpy(index_turns([np.flatnonzero(s.weight) for s in samples]))

    def gather(self, name: str) -> Tensor:
        """Return a field of the samples, such as `old_logp`, at all trained tokens; shape T."""
        values = [rollout.gather(name) for rollout in self.rollouts]
        return torch.from_numpy(np.concatenate([np.zeros(0), *values]))

    def scatter(self, values_T: Tensor, name: str) -> None:
        """Write a value for each trained token to a field of the samples, the inverse of
        `gather`."""
        for rollout, part_T in zip(self.rollouts, values_T.split(self._sizes), strict=True):
            rollout.scatter(part_T.detach().cpu().numpy(), name)

    @property
    def _sizes(self) -> list[int]:
        return [rollout.num_trained_tokens for rollout in self.rollouts]


def group_mean_baseline(rewards_G: Sequence[float]) -> list[float]:
    """Return the mean reward of the group for each rollout, the baseline of GRPO (arXiv 2402.03300,
    section 4.1) and Dr.GRPO (arXiv 2503.20783)."""
    return [fmean(rewards_G)] * len(rewards_G)


def leave_one_out_baseline(rewards_G: Sequence[float]) -> list[float]:
    """Return the leave-one-out baseline of RLOO (arXiv 2402.14740). It excludes the rollout's own
    reward. A group of one rollout is its own baseline, so its advantage is 0."""
    if len(rewards_G) == 1:
        return list(rewards_G)
    total = sum(rewards_G)
    return [(total - reward) / (len(rewards_G) - 1) for reward in rewards_G]


def group_std(rewards_G: Sequence[float]) -> float:
    """Return the divisor of GRPO: the population standard deviation plus EPSILON, never 0."""
    return pstdev(rewards_G) + EPSILON


def discounted_returns(rewards_T: Float64Array, gamma: float = 1.0) -> Float64Array:
    """Return the discounted return at each token: G_t = r_t + gamma G_{t+1}."""
    return gae(rewards_T, np.zeros_like(rewards_T), gamma=gamma, lam=1.0)


def gae(
    rewards_T: Float64Array, values_T: Float64Array, *, gamma: float, lam: float
) -> Float64Array:
    """Return the advantages of generalised advantage estimation (arXiv 1506.02438, equation 16).

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lam A_{t+1}, with V = 0 after the
    last token. `values_T[t]` is the value of the context before token t.
    """
    advantages_T = np.zeros(len(rewards_T))
    advantage, next_value = 0.0, 0.0
    for t in reversed(range(len(rewards_T))):
        delta = rewards_T[t] + gamma * next_value - values_T[t]
        advantage = delta + gamma * lam * advantage
        advantages_T[t], next_value = advantage, values_T[t]
    return advantages_T


def whiten(advantages: Sequence[Float64Array]) -> list[Float64Array]:
    """Return the advantages normalised by mean and standard deviation over all tokens of a step
    (REINFORCE++, arXiv 2501.03262; common in PPO). `advantages` has one array per rollout."""
    joined = np.concatenate([*advantages, np.zeros(0)])
    if not joined.size:
        return list(advantages)
    return [(part - joined.mean()) / (joined.std() + EPSILON) for part in advantages]


def compute_advantages(batch: StepBatch, settings: Rl) -> Tensor:
    """Return the advantage of each token, shape T, and write `target` of the samples if there is a
    critic.

    The samples' `value` (with a critic) and their `old_logp` and `ref_logp` (with `kl_placement:
    reward`) must be filled. Without a critic A_t = (G_t - b) / s: the return from t on, minus the
    baseline, divided by the group's standard deviation if configured; b and s are computed from
    full returns.

    With `advantage_floor: correct` no advantage of a correct rollout is below 0, so a penalty on
    calls cannot make a correct answer less likely (the sign reversal of arXiv 2601.14696).
    """
    advantages: list[Float64Array] = []
    for group in batch.groups:
        rewards = [compute_token_rewards(rollout, settings) for rollout in group]
        if settings.baseline == "critic":
            for rollout, rewards_T in zip(group, rewards, strict=True):
                critic, value_T = settings.critic, rollout.gather("value")
                advantages.append(
                    gae(rewards_T, value_T, gamma=critic.gamma, lam=critic.gae_lambda)
                )
                rollout.scatter(advantages[-1] + value_T, "target")
            continue
        returns = [
            float(rewards_T.sum()) if rewards_T.size else rollout.reward
            for rollout, rewards_T in zip(group, rewards, strict=True)
        ]
        baselines = _compute_baselines(returns, settings)
        scale = group_std(returns) if settings.advantage_scale == "group" and returns else 1.0
        advantages += [
            (discounted_returns(rewards_T) - b) / scale
            for rewards_T, b in zip(rewards, baselines, strict=True)
        ]
    if settings.advantage_scale == "batch":
        advantages = whiten(advantages)
    if settings.advantage_floor == "correct":
        advantages = [
            advantages_T.clip(min=0.0) if rollout.is_correct else advantages_T
            for rollout, advantages_T in zip(batch.rollouts, advantages, strict=True)
        ]
    return torch.from_numpy(np.concatenate([np.zeros(0), *advantages]))


def compute_token_rewards(rollout: ScoredRollout, settings: Rl) -> Float64Array:
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
        return leave_one_out_baseline(rewards)
    return group_mean_baseline(rewards)
