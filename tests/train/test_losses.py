"""Losses on a few tokens, compared with numbers computed by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fieldcraft.train.logprobs import logp_and_entropy
from fieldcraft.train.losses import (
    ContrastiveLoss,
    CrossEntropyLoss,
    LossFunction,
    PolicyGradientLoss,
    TokenBatch,
    ValueBatch,
    ValueLoss,
)


def tokens(logp: list[float], **fields: Any) -> TokenBatch:
    """Return a batch of tokens with these log-probabilities.

    Unless `fields` differ, weight, advantage and ratio are 1 and all tokens are one sequence.
    """
    logp_T = torch.tensor(logp, requires_grad=True)
    given = {name: torch.tensor(value) for name, value in fields.items()}
    old_T = given.get("old_logp_T", logp_T.detach().clone())
    default: dict[str, Any] = {
        "logp_T": logp_T,
        "entropy_T": torch.zeros(len(logp)),
        "weight_T": torch.ones(len(logp)),
        "seq_T": torch.zeros(len(logp), dtype=torch.long),
        "turn_T": torch.zeros(len(logp), dtype=torch.long),
        "advantage_T": torch.ones(len(logp)),
        "old_logp_T": old_T,
        "sampled_logp_T": old_T,
        "ref_logp_T": old_T,
        "num_sequences": 1 + max(fields.get("seq_T", [0])),
    }
    return TokenBatch(**default | given)


def value_and_gradient(
    objective: LossFunction, batch: TokenBatch, total: float
) -> tuple[float, list[float]]:
    loss, _ = objective(batch, total)
    loss.backward()
    gradient = batch.logp_T.grad
    assert gradient is not None
    return loss.item(), gradient.tolist()


# -- cross-entropy ------------------------------------------------------------------------------


def test_cross_entropy_is_the_weighted_sum_over_the_total_of_the_step() -> None:
    batch = tokens([-1.0, -2.0, -4.0], weight_T=[1.0, 0.0, 0.5])
    loss, gradient = value_and_gradient(CrossEntropyLoss(), batch, total=10.0)
    assert loss == pytest.approx((1.0 + 2.0) / 10)
    assert gradient == pytest.approx([-0.1, 0.0, -0.05])


# -- contrastive --------------------------------------------------------------------------------


def test_contrastive_of_one_pair() -> None:
    # P_chosen = (-1 - 3) / 2 = -2, P_rejected = -2.5: L = -log sigmoid(0.5) + 0.2 * 2
    batch = tokens([-1.0, -3.0, -2.5], seq_T=[0, 0, 1])
    loss, gradient = value_and_gradient(ContrastiveLoss(alpha=0.2), batch, total=1.0)
    pull = 1 / (1 + math.exp(0.5))  # d/dx of -log sigmoid(x) is -(1 - sigmoid(x))
    assert loss == pytest.approx(math.log(1 + math.exp(-0.5)) + 0.4)
    assert gradient == pytest.approx([-(pull + 0.2) / 2, -(pull + 0.2) / 2, pull])


def test_contrastive_is_the_mean_over_the_pairs_of_the_step() -> None:
    batch = tokens([-1.0, -2.0, -3.0, -1.0], seq_T=[0, 1, 2, 3])
    loss, metrics = ContrastiveLoss(alpha=0.0)(batch, 4.0)  # two of the four pairs of the step
    assert loss.item() == pytest.approx((math.log(1 + math.e**-1) + math.log(1 + math.e**2)) / 4)
    assert {k: v.item() for k, v in metrics.items()} == pytest.approx(
        {
            "loss": loss.item(),
            "pair_accuracy": 1 / 4,
            "chosen_logp": -4 / 4,
            "rejected_logp": -3 / 4,
        }
    )


# -- surrogate ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [  # clip 0.2 below and 0.4 above; slope is d loss / d logp = -ratio * A where not clipped
        (1.0, 2.0, -2.0, -2.0),
        (1.3, 2.0, -2.6, -2.6),  # above 1 + clip_low, below 1 + clip_high
        (1.5, 2.0, -2.8, 0.0),  # clipped high: 1.4 * 2
        (0.5, 2.0, -1.0, -1.0),  # a positive advantage is never clipped below
        (1.5, -2.0, 3.0, 3.0),  # a negative one never above
        (0.7, -2.0, 1.6, 0.0),  # clipped low: 0.8 * 2
        (0.9, -2.0, 1.8, 1.8),
    ],
)
def test_clipping(ratio: float, advantage: float, loss: float, slope: float) -> None:
    batch = tokens([-1.0], old_logp_T=[-1.0 - math.log(ratio)], advantage_T=[advantage])
    objective = PolicyGradientLoss(clip_low=0.2, clip_high=0.4)
    assert value_and_gradient(objective, batch, 1.0) == (
        pytest.approx(loss),
        [pytest.approx(slope)],
    )


def test_what_the_surrogate_reports() -> None:
    old = [-1.0 - math.log(ratio) for ratio in (1.5, 1.0, 0.5)]
    fields = {"weight_T": [1.0, 1.0, 0.0], "entropy_T": [math.log(4)] * 3}
    batch = tokens([-1.0, -1.0, -1.0], old_logp_T=old, **fields)
    _, metrics = PolicyGradientLoss()(batch, 2.0)
    assert {k: v.item() for k, v in metrics.items()} == pytest.approx(
        {
            "loss": -(1.2 + 1.0) / 2,
            "entropy": math.log(4),
            "ratio_mean": 2.5 / 2,
            "clip_fraction": 1 / 2,
            "log_ratio_abs": math.log(1.5) / 2,
            "sampler_logp_diff": math.log(1.5) / 2,
        }
    )


def test_kl_to_the_reference_is_k3() -> None:
    batch = tokens([-1.0], ref_logp_T=[-1.5], advantage_T=[0.0])
    loss, gradient = value_and_gradient(PolicyGradientLoss(kl_coef=0.1), batch, 1.0)
    assert loss == pytest.approx(0.1 * (math.exp(-0.5) + 0.5 - 1))
    assert gradient == pytest.approx([0.1 * (1 - math.exp(-0.5))])


def test_entropy_is_rewarded() -> None:
    logits_TV = torch.tensor([[2.0, 0.0]], requires_grad=True)
    _, entropy_T = logp_and_entropy(logits_TV, torch.tensor([0]))
    batch = tokens([-1.0], advantage_T=[0.0])
    batch = TokenBatch(**{f: getattr(batch, f) for f in batch.__slots__} | {"entropy_T": entropy_T})
    loss, _ = PolicyGradientLoss(entropy_coef=0.5)(batch, 1.0)
    p = 1 / (1 + math.exp(-2.0))
    assert loss.item() == pytest.approx(0.5 * (p * math.log(p) + (1 - p) * math.log(1 - p)))
    loss.backward()
    assert logits_TV.grad is not None
    assert logits_TV.grad[0, 0] > 0 > logits_TV.grad[0, 1]  # descent flattens the distribution


@pytest.mark.parametrize(("old_over_sampled", "importance"), [(1.5, 1.5), (9.0, 2.0)])
def test_importance_between_trainer_and_sampler_is_truncated(
    old_over_sampled: float, importance: float
) -> None:
    sampled = -1.0 - math.log(old_over_sampled)
    batch = tokens([-1.0], old_logp_T=[-1.0], sampled_logp_T=[sampled], advantage_T=[3.0])
    loss, gradient = value_and_gradient(PolicyGradientLoss(importance_cap=2.0), batch, 1.0)
    assert loss == pytest.approx(-3.0 * importance)
    assert gradient == pytest.approx([-3.0 * importance])


def log(*ratios: float) -> list[float]:
    """Return old log-probabilities that give these ratios for tokens with logp = -1."""
    return [-1.0 - math.log(ratio) for ratio in ratios]


def test_a_sequence_has_one_ratio_and_every_token_its_gradient() -> None:
    # s = sqrt(1.1 * 1.3) = 1.1958 for the first two tokens, 0.5 for the third, which is clipped
    batch = tokens(
        [-1.0, -1.0, -1.0],
        old_logp_T=log(1.1, 1.3, 0.5),
        seq_T=[0, 0, 1],
        weight_T=[0.5, 0.5, 1.0],
        advantage_T=[2.0, 2.0, -1.0],
    )
    objective = PolicyGradientLoss(ratio="sequence", clip_low=0.2, clip_high=0.4)
    loss, gradient = value_and_gradient(objective, batch, 2.0)
    s = 1.43**0.5
    assert loss == pytest.approx((-2 * s + 0.8) / 2)
    assert gradient == pytest.approx([-s / 2, -s / 2, 0.0])


def test_tokens_without_a_weight_are_no_part_of_their_sequences_ratio() -> None:
    batch = tokens([-1.0, -1.0], old_logp_T=log(1.1, 9.0), weight_T=[1.0, 0.0])
    loss, _ = value_and_gradient(PolicyGradientLoss(ratio="sequence"), batch, 1.0)
    assert loss == pytest.approx(-1.1)


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [  # clip_low 1 disables the lower bound; tokens that PPO drops are still trained
        (1.5, 2.0, 1.2),
        (9.0, -2.0, 1.2),
        (0.3, -2.0, 0.3),
    ],
)
def test_cispo_clips_the_weight_and_not_the_gradient(
    ratio: float, advantage: float, weight: float
) -> None:
    batch = tokens([-1.0], old_logp_T=log(ratio), advantage_T=[advantage])
    objective = PolicyGradientLoss(clip="cispo", clip_low=1.0, clip_high=0.2)
    loss, gradient = value_and_gradient(objective, batch, 1.0)
    assert loss == pytest.approx(weight * advantage)  # logp is -1
    assert gradient == [pytest.approx(-weight * advantage)]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [(2.0, -2.0, 4.0, 4.0), (5.0, -2.0, 6.0, 0.0), (1.1, 2.0, -2.2, -2.2), (5.0, 2.0, -2.4, 0.0)],
)
def test_dual_clip_bounds_what_a_bad_token_can_cost(
    ratio: float, advantage: float, loss: float, slope: float
) -> None:
    batch = tokens([-1.0], old_logp_T=log(ratio), advantage_T=[advantage])
    assert value_and_gradient(PolicyGradientLoss(dual_clip=3.0), batch, 1.0) == (
        pytest.approx(loss),
        [pytest.approx(slope)],
    )


@pytest.mark.parametrize(
    ("delta", "kl", "slope"),
    [
        (1.0, math.e - 2, 1 - math.e),
        (-2.0, math.exp(-2) + 1, 1 - math.exp(-2)),
        (5.0, 10.0, 0.0),  # exp(5) - 6 is 142
        (-15.0, 10.0, 0.0),  # exp(-15) + 14
    ],
)
def test_k3_of_a_token_is_at_most_10(delta: float, kl: float, slope: float) -> None:
    """The cap follows verl's low_var_kl: one distant token must not dominate the step."""
    batch = tokens([-20.0], ref_logp_T=[-20.0 + delta], advantage_T=[0.0])
    loss, gradient = value_and_gradient(PolicyGradientLoss(kl_coef=1.0), batch, 1.0)
    assert loss == pytest.approx(kl, rel=1e-5)
    assert gradient == pytest.approx([slope], rel=1e-5)


def test_a_log_ratio_is_clamped_at_20() -> None:
    batch = tokens([-1.0, -60.0], old_logp_T=[-60.0, -1.0], ref_logp_T=[-200.0, -1.0])
    loss, metrics = PolicyGradientLoss(kl_coef=1.0, clip="cispo", clip_high=1e12)(batch, 1.0)
    assert metrics["ratio_mean"].item() == pytest.approx(math.exp(20), rel=1e-5)
    assert metrics["kl_ref"].item() == pytest.approx(10 + 10)  # 19 and 5e8 uncapped, see below
    assert math.isfinite(loss.item())


# -- between sampler and trainer ----------------------------------------------------------------

# Tokens 0 and 1 are one sequence, 2 is another; pi_old / pi_sampler of each:
QUOTIENTS = (1.5, 0.5, 0.9)
APART: dict[str, Any] = {
    "old_logp_T": [-1.0] * 3,
    "sampled_logp_T": [-1.0 - math.log(q) for q in QUOTIENTS],
    "seq_T": [0, 0, 1],
}


@pytest.mark.parametrize(
    ("level", "weights"),
    [("token", [1.2, 0.5, 0.9]), ("sequence", [0.75, 0.75, 0.9])],  # 1.5 * 0.5
)
def test_the_truncated_weight_of_tokens_and_of_sequences(level: Any, weights: list[float]) -> None:
    objective = PolicyGradientLoss(importance=level, importance_cap=1.2)
    _, gradient = value_and_gradient(objective, tokens([-1.0] * 3, **APART), 1.0)
    assert gradient == pytest.approx([-w for w in weights])


@pytest.mark.parametrize(
    ("level", "low", "kept"),
    [  # geometric: sqrt(0.75) = 0.866
        ("token", 0.6, [0, 0, 1]),
        ("token", 0.4, [0, 1, 1]),  # 1.5 is above the upper bound of 1.4
        ("sequence", 0.8, [0, 0, 1]),
        ("sequence", 0.7, [1, 1, 1]),
        ("geometric", 0.8, [1, 1, 1]),
        ("geometric", 0.88, [0, 0, 1]),
    ],
)
def test_what_the_sampler_meant_otherwise_is_rejected(
    level: Any, low: float, kept: list[int]
) -> None:
    objective = PolicyGradientLoss(reject=level, reject_low=low, reject_high=1.4, kl_coef=1.0)
    batch = tokens([-1.0] * 3, **APART, ref_logp_T=[-1.0] * 3)
    loss, metrics = objective(batch, 3.0)
    loss.backward()
    assert batch.logp_T.grad is not None
    assert batch.logp_T.grad.tolist() == pytest.approx([-k / 3 for k in kept])
    assert metrics["sampler_rejected_rate"].item() == pytest.approx((3 - sum(kept)) / 3)


# -- against likelihood collapse ----------------------------------------------------------------


def test_llds_holds_up_turns_that_became_less_likely() -> None:
    # turn 0 falls by 0.3 - 0.1 in sum, so its fallen token counts; turn 1 rises in sum; turn 2
    # falls, but belongs to a bad rollout; turn 3 is unchanged
    falls = [0.3, -0.1, 0.2, -0.4, 0.5, 1e-4]
    batch = tokens(
        [-1.0] * 6,
        old_logp_T=[-1.0 + fall for fall in falls],
        turn_T=[0, 0, 1, 1, 2, 3],
        advantage_T=[0.0, 0.0, 0.0, 0.0, -1e-9, 0.0],
    )
    loss, gradient = value_and_gradient(PolicyGradientLoss(llds_coef=0.2), batch, 6.0)
    assert loss == pytest.approx(0.2 * 0.3 / 6, abs=1e-7)
    assert gradient == pytest.approx([-0.2 / 6, 0, 0, 0, 0, 0], abs=1e-7)


# -- on policy, all forms are equal -------------------------------------------------------------


@pytest.mark.parametrize(
    "objective",
    [
        PolicyGradientLoss(),
        PolicyGradientLoss(clip_low=3e-4, clip_high=4e-4, ratio="sequence"),
        PolicyGradientLoss(clip="cispo", clip_low=1.0, clip_high=4.0),
        PolicyGradientLoss(dual_clip=3.0, llds_coef=0.2),
        PolicyGradientLoss(importance="sequence", importance_cap=2.0, reject="geometric"),
    ],
)
def test_on_policy_every_form_is_the_plain_policy_gradient(objective: PolicyGradientLoss) -> None:
    """At ratio 1 the gradient equals the gradient of -sum w A logp / total, as in REINFORCE."""
    fields: dict[str, Any] = {
        "advantage_T": [1.2, 1.2, -0.7, 2.0],
        "weight_T": [0.5, 0.25, 1.0, 0.0],
        "seq_T": [0, 0, 1, 1],
    }
    batch = tokens([-0.3, -1.1, -2.0, -5.0], **fields)
    _, gradient = value_and_gradient(objective, batch, 4.0)
    assert gradient == pytest.approx([-0.5 * 1.2 / 4, -0.25 * 1.2 / 4, 0.7 / 4, 0.0])


# -- the critic ---------------------------------------------------------------------------------


def test_the_value_loss_gives_nothing_for_moving_far() -> None:
    # old 0, clip 0.5. A value of 0.4 is near; 0.8 has moved past 0.5, towards its target and
    # beyond; -0.8 away from it.
    value_T = torch.tensor([0.4, 0.8, -0.8, 9.0], requires_grad=True)
    batch = ValueBatch(
        value_T=value_T,
        weight_T=torch.tensor([1.0, 1.0, 2.0, 0.0]),
        old_value_T=torch.zeros(4),
        target_T=torch.tensor([1.0, 1.0, 1.0, 0.0]),
    )
    loss, metrics = ValueLoss(clip=0.5)(batch, 4.0)
    loss.backward()
    # 0.6^2, max(0.2^2, 0.5^2), 2 max(1.8^2, 1.5^2)
    assert loss.item() == pytest.approx(0.5 * (0.36 + 0.25 + 6.48) / 4)
    assert value_T.grad is not None
    assert value_T.grad.tolist() == pytest.approx([-0.6 / 4, 0.0, -2 * 1.8 / 4, 0.0])
    assert metrics["clip_fraction"].item() == pytest.approx(1 / 4)
    assert metrics["value"].item() == pytest.approx((0.4 + 0.8 - 1.6) / 4)


# -- masks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "objective",
    [
        CrossEntropyLoss(),
        ContrastiveLoss(),
        PolicyGradientLoss(kl_coef=0.1, entropy_coef=0.1, clip_high=0.4),
        PolicyGradientLoss(
            ratio="sequence", clip_high=0.4, importance="sequence", importance_cap=2.0
        ),
        PolicyGradientLoss(clip="cispo", llds_coef=0.1, reject="geometric"),
    ],
)
def test_what_has_no_weight_gets_exactly_no_gradient(objective: LossFunction) -> None:
    torch.manual_seed(0)
    logits_TV = torch.randn(6, 5, requires_grad=True)
    targets_T = torch.arange(6) % 5
    logp_T, entropy_T = logp_and_entropy(logits_TV, targets_T)
    other_T: Tensor = logp_T.detach() - 0.1
    batch = TokenBatch(
        logp_T=logp_T,
        entropy_T=entropy_T,
        weight_T=torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 0.5]),
        seq_T=torch.tensor([0, 0, 0, 1, 1, 1]),
        turn_T=torch.tensor([0, 0, 0, 1, 1, 1]),
        advantage_T=torch.ones(6),
        old_logp_T=other_T,
        sampled_logp_T=other_T - 0.1,
        ref_logp_T=other_T - 0.2,
        num_sequences=2,
    )
    loss, _ = objective(batch, 2.5)
    loss.backward()
    assert logits_TV.grad is not None
    assert (logits_TV.grad != 0).any(-1).tolist() == [False, True, False, True, False, True]
