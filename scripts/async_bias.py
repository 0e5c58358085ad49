"""Compute the error of the gradient of an asynchronous step exactly, without sampling.

A small policy writes 8 tokens from an alphabet of 3, so all 6,561 texts can be enumerated, and all
expectations are exact. The sampler is the policy several exact policy-gradient steps earlier. The
table of docs/lab-notes/asynchronous.md has, for each correction and each drift between the two:

- bias: distance of the expected gradient from the true one, as a share of the latter's norm,
- error: root mean square distance of the gradient of a step with 256 rollouts, likewise.

    python scripts/async_bias.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

TOKENS, LENGTH = 3, 8
ROLLOUTS = 256  # per step
SEEDS = range(4)  # of the problems, over which results are averaged
DRIFTS = (0.02, 0.05, 0.1, 0.2, 0.4)  # mean |log ratio| of a token
PACE = 0.05  # norm of an exact policy-gradient step
CLIP = 0.2


def all_texts() -> Tensor:
    """Return all texts, (N, LENGTH)."""
    return torch.cartesian_prod(*[torch.arange(TOKENS)] * LENGTH)


TEXTS = all_texts()
PLACES = torch.arange(LENGTH)
LAST = torch.cat([torch.zeros(len(TEXTS), 1, dtype=torch.long), TEXTS[:, :-1]], 1)


def log_probs(logits: Tensor) -> Tensor:
    """Return log pi of each token of each text (N, LENGTH). `logits` (LENGTH, TOKENS, TOKENS) are
    indexed by position, previous token and token."""
    chances: Tensor = logits.log_softmax(-1)
    return chances[PLACES, LAST, TEXTS]


@dataclass(frozen=True)
class Problem:
    """A policy, an older policy that samples, and the rewards of all texts (N,)."""

    policy: Tensor
    sampler: Tensor
    reward: Tensor

    @property
    def log_ratio(self) -> Tensor:
        """Log ratio log(pi / mu) of each token, (N, LENGTH)."""
        return log_probs(self.policy) - log_probs(self.sampler)

    @property
    def sampled(self) -> Tensor:
        """Probability of sampling each text, (N,)."""
        return log_probs(self.sampler).sum(1).exp()

    @property
    def drift(self) -> float:
        """Mean |log ratio| of the sampled tokens."""
        return float((self.sampled[:, None] * self.log_ratio.abs()).sum() / LENGTH)


Correction = Callable[[Tensor, Tensor], Tensor]  # of (log ratio, advantage), both (N, LENGTH)


def token(cap: float) -> Correction:
    return lambda log_ratio, _: log_ratio.exp().clamp(max=cap)


def sequence(cap: float) -> Correction:
    return lambda log_ratio, _: log_ratio.sum(1, keepdim=True).exp().clamp(max=cap) + 0 * log_ratio


def clipped(log_ratio: Tensor, advantage: Tensor) -> Tensor:
    """Return PPO's ratio to the sampling policy, and 0 for clipped tokens without a gradient."""
    ratio = log_ratio.exp()
    held = ratio.clamp(1 - CLIP, 1 + CLIP)
    return torch.where(ratio * advantage <= held * advantage, ratio, 0.0)


NONE = float("inf")
CORRECTIONS: dict[str, Correction] = {
    "none": lambda log_ratio, _: torch.ones_like(log_ratio),
    "`sampler_is_cap: null`, clipped": clipped,
    "token, cap 2": token(2),
    "token, cap 5": token(5),
    "sequence, cap 2": sequence(2),
    "sequence, cap 5": sequence(5),
    "sequence, no cap": sequence(NONE),
}


def exact_gradient(logits: Tensor, reward: Tensor) -> Tensor:
    """Return the gradient of the expected reward."""
    leaf = logits.clone().requires_grad_()
    [gradient] = torch.autograd.grad((log_probs(leaf).sum(1).exp() * reward).sum(), leaf)
    return gradient


def expected_gradient(problem: Problem, correct: Correction) -> tuple[Tensor, float]:
    """Return the mean of the estimator for one rollout, and its variance. The advantage is the
    reward minus its mean, as with a large group."""
    sampled = problem.sampled
    advantage = (problem.reward - (sampled * problem.reward).sum())[:, None].expand(-1, LENGTH)
    weight = correct(problem.log_ratio, advantage) * advantage
    leaf = problem.policy.clone().requires_grad_()
    [gradient] = torch.autograd.grad((sampled[:, None] * weight * log_probs(leaf)).sum(), leaf)
    chances = problem.policy.softmax(-1)[PLACES, LAST]  # (N, LENGTH, TOKENS)
    score = torch.nn.functional.one_hot(TEXTS, TOKENS) - chances
    square = (sampled[:, None] * weight**2 * score.square().sum(-1)).sum()  # no token shares logits
    return gradient, float(square - gradient.square().sum())


def problems(seed: int) -> Iterator[tuple[float, Problem]]:
    """Yield each drift with the first policy that has drifted that far from the sampling policy.
    A text is correct if it contains a random pattern of three tokens; a tenth to a third of them
    do."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(LENGTH, TOKENS, TOKENS, generator=generator, dtype=torch.float64)
    pattern = torch.randint(TOKENS, (3,), generator=generator)
    right = (TEXTS.unfold(1, 3, 1) == pattern).all(-1).any(-1).double()
    policy, left = start, list(DRIFTS)
    while left:
        gradient = exact_gradient(policy, right)
        policy = policy + PACE * gradient / gradient.norm()
        problem = Problem(policy, start, right)
        if problem.drift >= left[0]:
            yield left.pop(0), problem


def table() -> dict[str, dict[float, tuple[float, float, float]]]:
    """Return (bias, error, cosine) by correction and drift, averaged over the problems."""
    sums = {name: {drift: [0.0] * 3 for drift in DRIFTS} for name in CORRECTIONS}
    for seed in SEEDS:
        for drift, problem in problems(seed):
            true = exact_gradient(problem.policy, problem.reward)
            for name, correct in CORRECTIONS.items():
                mean, variance = expected_gradient(problem, correct)
                bias = float((mean - true).norm() / true.norm())
                noise = variance / ROLLOUTS / float(true.square().sum())
                cosine = float((mean * true).sum() / mean.norm() / true.norm())
                for place, value in enumerate((bias, (bias**2 + noise) ** 0.5, cosine)):
                    sums[name][drift][place] += value / len(SEEDS)
    return {
        name: {drift: (found[0], found[1], found[2]) for drift, found in row.items()}
        for name, row in sums.items()
    }


def markdown(rows: dict[str, dict[float, tuple[float, float, float]]]) -> str:
    """Return the table of the document: bias and error in percent."""
    head = ["weights"] + [f"{drift:g}" for drift in DRIFTS]
    lines = [head, ["---"] * len(head)]
    for name, row in rows.items():
        lines.append([name] + [f"{row[d][0]:.0%}, {row[d][1]:.0%}" for d in DRIFTS])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    print(markdown(table()))
