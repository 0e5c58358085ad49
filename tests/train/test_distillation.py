"""Reverse KL to a teacher, compared with values computed by hand and with autograd."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import distil_parts
from fieldcraft.train import logprobs
from fieldcraft.train.distillation import DistillationLoss, compute_teacher_advantages
from fieldcraft.train.logprobs import reverse_kl
from fieldcraft.train.losses import PolicyGradientLoss, TokenBatch
from fieldcraft.train.stages.roles import make_algorithm

STUDENT = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]).log()
TEACHER = torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.25, 0.25]]).log()


def random_logits(seed: int, tokens: int = 5, words: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(tokens, words, generator=generator, dtype=torch.float64)


def direct(logits_TV: Tensor, teacher_TV: Tensor) -> Tensor:
    """Return the reverse KL by its formula."""
    p_TV, q_TV = logits_TV.softmax(-1), teacher_TV.softmax(-1)
    return (p_TV * (p_TV.log() - q_TV.log())).sum(-1)


def batch_of(
    logits_TV: Tensor, teacher_TV: Tensor, advantage: float = 0.0, top_k: int | None = None
) -> TokenBatch:
    """Return a batch of tokens with weights 1 and 2, each of which is the first word."""
    count = len(logits_TV)
    logp_T = logits_TV.log_softmax(-1)[:, 0]
    old_T = logp_T.detach()
    return TokenBatch(
        logp_T=logp_T,
        entropy_T=torch.zeros(count),
        weight_T=torch.arange(1.0, count + 1),
        seq_T=torch.zeros(count, dtype=torch.long),
        turn_T=torch.zeros(count, dtype=torch.long),
        advantage_T=torch.full((count,), advantage),
        old_logp_T=old_T,
        sampled_logp_T=old_T,
        ref_logp_T=old_T,
        num_sequences=1,
        teacher_kl_T=reverse_kl(logits_TV, teacher_TV, top_k),
    )


# -- values ---------------------------------------------------------------------------------------


def test_the_kl_of_known_distributions() -> None:
    """0.5 log(0.5 / 0.25) + 0.25 log(0.25 / 0.5) = 0.25 log 2; constants in logits do not count."""
    kl_T = reverse_kl(STUDENT + 3.0, TEACHER - 7.0)
    assert kl_T.tolist() == pytest.approx([0.25 * math.log(2), 0.0], abs=1e-6)


def test_top_1_compares_the_likeliest_word_with_the_rest() -> None:
    """0.5 log(0.5 / 0.25) + 0.5 log(0.5 / 0.75)."""
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert reverse_kl(STUDENT, TEACHER, 1)[0].item() == pytest.approx(expected)


def test_top_k_is_at_most_the_whole_and_equal_to_it_with_every_word() -> None:
    student, teacher = random_logits(0), random_logits(1)
    full_T = reverse_kl(student, teacher)
    for k in range(1, 7):
        some_T = reverse_kl(student, teacher, k)
        assert (some_T >= 0).all()
        assert (some_T <= full_T + 1e-12).all()
        assert (some_T < full_T - 1e-6).any() == (k < 6)  # a rest of one word equals that word
    for k in (7, 8):
        assert torch.equal(reverse_kl(student, teacher, k), full_T)


def test_words_that_only_one_output_layer_has_do_not_count() -> None:
    student, teacher = random_logits(0), random_logits(1)
    wide = torch.cat([teacher, torch.full((5, 3), 50.0, dtype=torch.float64)], dim=1)
    assert torch.equal(reverse_kl(student, wide), reverse_kl(student, teacher))
    assert torch.equal(reverse_kl(wide, teacher), reverse_kl(teacher, teacher))


# -- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [2**22, 14, 1])  # numbers: all rows at once, two, one
def test_the_gradient_is_that_of_the_direct_formula(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "MAX_CHUNK_ELEMENTS", chunk)
    student, plain = (random_logits(0).requires_grad_() for _ in range(2))
    teacher = random_logits(1)
    factor_T = torch.arange(1.0, 6, dtype=torch.float64)
    (factor_T * reverse_kl(student, teacher)).sum().backward()
    (factor_T * direct(plain, teacher)).sum().backward()
    assert student.grad is not None
    torch.testing.assert_close(student.grad, plain.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("top_k", [1, 3, 7, None])
def test_the_gradient_of_top_k_against_finite_differences(top_k: int | None) -> None:
    student, teacher = random_logits(2).requires_grad_(), random_logits(3)
    assert torch.autograd.gradcheck(lambda x: reverse_kl(x, teacher, top_k), student)


@pytest.mark.parametrize("top_k", [2, None])
def test_equal_models_have_no_loss_and_no_gradient_at_all(top_k: int | None) -> None:
    student = random_logits(4).float().requires_grad_()
    loss, metrics = DistillationLoss(policy_loss=PolicyGradientLoss())(
        batch_of(student, student.detach().clone(), top_k=top_k), 15.0
    )
    loss.backward()
    assert loss.item() == metrics["teacher_kl"].item() == 0
    assert student.grad is not None
    assert not student.grad.any()


# -- the loss -------------------------------------------------------------------------------------


def test_the_loss_is_the_weighted_kl_over_the_total() -> None:
    loss, metrics = DistillationLoss(policy_loss=PolicyGradientLoss())(
        batch_of(STUDENT, TEACHER), 4.0
    )
    expected = 1 * 0.25 * math.log(2) / 4  # the second token, of weight 2, has no KL
    assert loss.item() == pytest.approx(expected)
    assert metrics["loss"].item() == metrics["teacher_kl"].item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("level", "kept"),  # ratios of trainer to sampler: 0.4, 1.25; their product 0.5, mean 0.707
    [("token", [0, 1]), ("sequence", [0, 0]), ("geometric", [1, 1])],
)
def test_rejected_tokens_have_no_gradient_of_the_kl(level: Any, kept: list[int]) -> None:
    """The KL of p = sigmoid(x) to q = 1/2 has the derivative p (1 - p) x."""
    x = 1.0
    logits = torch.tensor([[x, 0.0], [x, 0.0]], requires_grad=True)
    batch = batch_of(logits, torch.zeros(2, 2))
    ratio_T = torch.tensor([0.4, 1.25])
    batch = replace(batch, sampled_logp_T=batch.old_logp_T - ratio_T.log())
    settings = distil_parts.settings(kl="full", sampler_reject=level, sampler_reject_low=0.6)
    loss, metrics = make_algorithm(settings).loss()(batch, 4.0)
    loss.backward()
    p = 1 / (1 + math.exp(-x))
    slope = p * (1 - p) * x / 4
    assert logits.grad is not None
    assert logits.grad[:, 0].tolist() == pytest.approx([kept[0] * slope, 2 * kept[1] * slope])
    kl = math.log(2) + p * math.log(p) + (1 - p) * math.log(1 - p)
    assert loss.item() == pytest.approx((kept[0] + 2 * kept[1]) * kl / 4)
    assert metrics["teacher_kl"].item() == pytest.approx(3 * kl / 4)


def test_advantages_of_rewards_stand_beside_the_kl() -> None:
    """On policy the gain equals the advantage. The weights are 1 and 2."""
    loss, metrics = DistillationLoss(policy_loss=PolicyGradientLoss())(
        batch_of(STUDENT, TEACHER, 0.5), 4.0
    )
    kl = 0.25 * math.log(2) / 4
    assert loss.item() == pytest.approx(kl - 3 * 0.5 / 4)
    assert metrics["teacher_kl"].item() == pytest.approx(kl)


@pytest.mark.parametrize(("first", "expected"), [(0.0, 0.0), (0.5, 0.125 * math.log(2) / 4)])
def test_only_the_kl_with_a_weight_of_the_teacher_is_trained(first: float, expected: float) -> None:
    """The metric is the KL of all trained tokens, whether they are taught or not."""
    batch = replace(batch_of(STUDENT, TEACHER), teacher_weight_T=torch.tensor([first, 1.0]))
    loss, metrics = DistillationLoss(policy_loss=PolicyGradientLoss())(batch, 4.0)
    assert loss.item() == metrics["loss"].item() == pytest.approx(expected)
    assert metrics["teacher_kl"].item() == pytest.approx(0.25 * math.log(2) / 4)


# -- one sampled token ----------------------------------------------------------------------------


def test_a_sampled_advantage_is_the_log_ratio_within_limits() -> None:
    found = compute_teacher_advantages(
        torch.tensor([-1.0, -2.0, -50.0, 0.0]), torch.tensor([-3.0, -0.5, 0, -50])
    )
    assert found.tolist() == [-2.0, 1.5, 20.0, -20.0]


def test_sampled_tokens_expect_what_the_whole_vocabulary_says() -> None:
    """The expectation under the student over all words gives the KL and its gradient."""
    student, teacher = random_logits(5, 1).requires_grad_(), random_logits(6, 1)
    logp_V, logq_V = student.log_softmax(-1)[0], teacher.log_softmax(-1)[0]
    p_V, advantage_V = logp_V.exp().detach(), compute_teacher_advantages(logp_V.detach(), logq_V)
    kl = reverse_kl(student, teacher).sum()
    assert (p_V * advantage_V).sum().item() == pytest.approx(-kl.item())
    [sampled] = torch.autograd.grad(-(p_V * advantage_V * logp_V).sum(), student, retain_graph=True)
    [whole] = torch.autograd.grad(kl, student)
    torch.testing.assert_close(sampled, whole, rtol=1e-9, atol=1e-12)
