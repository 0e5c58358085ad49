"""Advantages from rewards: the credit of each token.

A rollout's reward stands at its last token. The tokens of a folded rollout are those of all its
chains, one after the other, so its return flows back through its summaries. With `kl_in: reward`
every token also pays for how far the policy has moved from the reference there. All of this looks
at the policy's tokens alone, as if observations were not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fieldcraft.algos import advantages as adv
from fieldcraft.algos.losses import LIMIT
from fieldcraft.config.rl import Rl
from fieldcraft.train.batch import Unit


@dataclass(frozen=True, slots=True)
class Scored:
    """A graded rollout, with a sample of each chain. Where they have no weight it is not trained
    on, but its reward still counts in its group."""

    samples: Unit
    reward: float
    right: bool = False

    @property
    def trained(self) -> Unit:
        """The chains that have tokens to train."""
        return tuple(sample for sample in self.samples if sample.weight.any())

    def gather(self, name: str) -> adv.Floats:
        """Return a field of the samples over the tokens that are trained, those of all chains."""
        found = [getattr(s, name)[s.weight > 0].astype(float) for s in self.trained]
        return np.concatenate([np.zeros(0), *found])

    def spread(self, values_T: adv.Floats, name: str) -> None:
        """Spread a value for each of those tokens over a field of the samples, the inverse of
        `gather`; elsewhere it gets 0."""
        begin = 0
        for sample in self.samples:
            end = begin + int((sample.weight > 0).sum())
            setattr(sample, name, sample.spread(values_T[begin:end]))
            begin = end


def assign_advantages(groups: Sequence[Sequence[Scored]], settings: Rl) -> None:
    """Fill `advantage` of every sample, and `target` where there is a critic.

    The samples' `value` (with a critic) and their `old_logp` and `ref_logp` (with `kl_in: reward`)
    must be filled. Without a critic A_t = (G_t - b) / s: the return from t on, minus the baseline,
    over the group's standard deviation if asked; b and s come from whole returns.

    With `advantage_floor: right` no advantage of a right rollout is below 0, so a price on calls
    cannot make a right answer less likely (the sign reversal of arXiv 2601.14696).
    """
    scored = [member for group in groups for member in group]
    found: list[adv.Floats] = []
    for group in groups:
        rewards = [token_rewards(member, settings) for member in group]
        if settings.baseline == "critic":
            for member, rewards_T in zip(group, rewards, strict=True):
                critic, value_T = settings.critic, member.gather("value")
                found.append(adv.gae(rewards_T, value_T, gamma=critic.gamma, lam=critic.gae_lambda))
                member.spread(found[-1] + value_T, "target")
            continue
        whole = [
            float(rewards_T.sum()) if rewards_T.size else member.reward
            for member, rewards_T in zip(group, rewards, strict=True)
        ]
        baselines = _baselines(whole, settings)
        scale = adv.deviation(whole) if settings.scale == "group" and whole else 1.0
        found += [
            (adv.returns_to_go(rewards_T) - b) / scale
            for rewards_T, b in zip(rewards, baselines, strict=True)
        ]
    if settings.scale == "batch":
        found = adv.whiten(found)
    for member, advantages_T in zip(scored, found, strict=True):
        floor = 0.0 if member.right and settings.advantage_floor == "right" else -np.inf
        member.spread(advantages_T.clip(min=floor), "advantage")


def token_rewards(scored: Scored, settings: Rl) -> adv.Floats:
    """Return the reward of each of the policy's tokens; none where the rollout is not trained
    on."""
    rewards_T = np.zeros_like(scored.gather("weight"))
    if settings.kl_in == "reward" and settings.kl_coef:
        moved_T = scored.gather("old_logp") - scored.gather("ref_logp")
        rewards_T -= settings.kl_coef * moved_T.clip(-LIMIT, LIMIT)
    if rewards_T.size:
        rewards_T[-1] += scored.reward
    return rewards_T


def _baselines(rewards: Sequence[float], settings: Rl) -> Sequence[float]:
    if not rewards or settings.baseline == "none":
        return [0.0] * len(rewards)
    if settings.baseline == "others":
        return adv.mean_of_others(rewards)
    return adv.mean_of_group(rewards)
