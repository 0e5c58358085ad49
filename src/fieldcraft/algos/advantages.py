"""Advantage estimators: plain arithmetic on rewards and values.

Shape letters: G rollouts of a group, T tokens that the policy wrote in a rollout. Observation
tokens are excluded: the token after an observation directly follows the token before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

import numpy as np
from numpy.typing import NDArray

Float64Array = NDArray[np.float64]
EPSILON = 1e-6  # added to standard deviations


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
