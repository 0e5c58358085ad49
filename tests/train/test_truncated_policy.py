"""Exact gradients of a truncated policy, by enumeration, compared with the loss of training.

They show why a truncated policy is not trained. A policy writes two tokens of eight words, and each
of the 64 texts has a reward. `exact` is the gradient of the expected reward of the sampling policy:
each distribution is truncated at top_p and renormalised. The other gradients come from this
package's loss, in expectation over the samples, with log-probabilities of all tokens.
"""

import pytest
import torch
from torch import Tensor

from fieldcraft.engine.local.sampling import TruncationLimits, mask_candidates
from fieldcraft.train.losses import PolicyGradientLoss, TokenBatch

WORDS = 8
HAND = [[0.5, 0.25, 0.15, 0.1]]


def logits_of(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return random logits of the first token [V] and the second one [V, V], and rewards [V, V]."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(WORDS, generator=generator, dtype=torch.float64).requires_grad_()
    second = torch.randn(WORDS, WORDS, generator=generator, dtype=torch.float64).requires_grad_()
    return first, second, torch.rand(WORDS, WORDS, generator=generator, dtype=torch.float64)


def select_candidates(logits: Tensor, top_p: float) -> Tensor:
    """Return the mask of the tokens that the engine keeps, for logits [N, V] in the order of the
    ids.
    """
    values, tokens = logits.detach().sort(descending=True)
    n = len(logits)
    cut = TruncationLimits(
        torch.zeros(n), torch.full((n,), top_p, dtype=torch.float64), torch.zeros(n)
    )
    among, _ = mask_candidates(values, values.logsumexp(-1), cut)
    return torch.zeros_like(among).scatter(1, tokens, among)


def log_policy(logits: Tensor, top_p: float) -> Tensor:
    return logits.masked_fill(~select_candidates(logits, top_p), -torch.inf).log_softmax(-1)


def texts(first: Tensor, second: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of the first and the second token of all texts, [V * V] each."""
    one = log_policy(first[None], top_p)[0]
    return one.repeat_interleave(WORDS), log_policy(second, top_p).flatten()


def gradient(value: Tensor, *inputs: Tensor) -> Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(value, inputs)])


def followed(
    seed: int, surrogate: PolicyGradientLoss, *, top_p: float, trained: float, old: float
) -> tuple[Tensor, Tensor]:
    """Return the exact gradient and the gradient that training follows.

    `trained` is the top_p of the trainer's log-probabilities, and `old` is the top_p of the ratio's
    denominator. A value of 1 truncates nothing.
    """
    first, second, rewards = logits_of(seed)
    sampled = texts(first, second, top_p)
    weights = sum(sampled).exp()
    exact = gradient((weights * rewards.flatten()).sum(), first, second)
    possible = weights.detach() > 0
    mean = float((weights.detach() * rewards.flatten()).sum())

    def tokens(pair: tuple[Tensor, Tensor]) -> Tensor:
        return torch.stack([one[possible] for one in pair], 1).flatten()

    numbers = torch.arange(int(possible.sum())).repeat_interleave(2)
    logp = tokens(texts(first, second, trained))
    batch = TokenBatch(
        logp_T=logp,
        entropy_T=torch.zeros_like(logp),
        weight_T=weights.detach()[possible].repeat_interleave(2),
        seq_T=numbers,
        turn_T=numbers,
        advantage_T=(rewards.flatten() - mean)[possible].repeat_interleave(2),
        old_logp_T=tokens(texts(first, second, old)).detach(),
        sampled_logp_T=tokens(sampled).detach(),
        ref_logp_T=logp.detach(),
        num_sequences=int(possible.sum()),
    )
    loss, _ = surrogate(batch, 1.0)
    return exact, -gradient(loss, first, second)


def error(exact: Tensor, found: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("seed", range(5))
def test_the_same_truncated_distribution_on_both_sides_has_the_exact_gradient(seed: int) -> None:
    assert error(*followed(seed, PolicyGradientLoss(), top_p=0.8, trained=0.8, old=0.8)) < 1e-12


GSPO = PolicyGradientLoss(ratio="sequence", clip_low=3e-4, clip_high=4e-4)


@pytest.mark.parametrize(
    ("surrogate", "recomputed", "least"),
    [
        # The ratio to the sampler is the retained share of probability. It is below 1 in the first
        # step already, before any learning.
        pytest.param(PolicyGradientLoss(), False, 0.1, id="grpo"),
        pytest.param(GSPO, False, 0.3, id="gspo"),
        pytest.param(PolicyGradientLoss(), True, 0.05, id="recomputed"),
        pytest.param(
            PolicyGradientLoss(importance_cap=5.0), True, 0.1, id="recomputed and weighed"
        ),
    ],
)
def test_log_probabilities_of_all_tokens_follow_another_gradient(
    surrogate: PolicyGradientLoss, recomputed: bool, least: float
) -> None:
    for top_p in (0.9, 0.8, 0.6):
        old = 1.0 if recomputed else top_p
        pairs = [followed(s, surrogate, top_p=top_p, trained=1.0, old=old) for s in range(100)]
        errors = sorted(error(*pair) for pair in pairs)
        print(f"top_p {top_p}: {errors[50]:.2f} ({errors[10]:.2f} to {errors[89]:.2f})")
    assert errors[50] > least


def test_by_hand() -> None:
    # 0.5, 0.25, 0.15, 0.1: top_p=0.7 would keep the first two, 0.8 the first three of them.
    logits = torch.tensor(HAND, dtype=torch.float64).log()
    assert select_candidates(logits, 0.7).tolist() == [[True, True, False, False]]
    assert select_candidates(logits, 0.8).tolist() == [[True, True, True, False]]
    logits.requires_grad_()
    policy = log_policy(logits, 0.8).exp()
    assert policy[0].tolist() == pytest.approx([5 / 9, 2.5 / 9, 1.5 / 9, 0])
    # Gradient of the probability of the first token: p (1 - p), -p q, -p r, 0.
    moved = gradient(policy[0, 0], logits)
    assert moved.tolist() == pytest.approx([20 / 81, -12.5 / 81, -7.5 / 81, 0])
    whole = gradient(log_policy(logits, 1.0)[0, 0], logits) * 5 / 9
    assert whole.tolist() == pytest.approx([2.5 / 9, -1.25 / 9, -0.75 / 9, -0.5 / 9])
