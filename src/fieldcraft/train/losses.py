"""Losses: pure functions of flat tensors, each returning (loss, metrics).

Shape letters: T tokens of all sequences of a micro-batch, concatenated; S sequences; P pairs.
`logp_T[t]` is log pi(token t | tokens before it). `weight_T` is the loss weight of token t: 0 for
prompts and observations, with the normalisation of the algorithm already included. Every loss is
divided by a total over the whole optimizer step, so gradients accumulated over micro-batches equal
those of one large batch by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

Metrics = dict[str, Tensor]  # sums over tokens, to be divided by the same totals
RejectLevel = Literal["token", "sequence", "geometric"]

MAX_LOG_RATIO = 20.0  # clamp of log-ratios: exp of a larger one would dominate the step
MAX_K3 = 10.0  # clamp of k3: near MAX_LOG_RATIO it is 5e8, so one token would dominate the step
LLDS_TOLERANCE = 1e-3  # bound on the noise of a token's log-probability under the same weights


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A micro-batch as flat tensors, all of shape T unless noted.

    `old_logp_T` is the denominator of the policy ratio, `sampled_logp_T` comes from the engine that
    sampled (equal to `old_logp_T` unless that was recomputed), and `ref_logp_T` from the frozen
    reference. `entropy_T` is the entropy of each token's distribution, `teacher_kl_T` its reverse
    KL to the teacher's, None without a teacher, and `teacher_weight_T` the weight of that KL in the
    loss. All are at the sampling temperature.
    `current_version_T` is 1 for tokens sampled by the policy version at the start of the step and 0
    for older ones; None if all are current. `seq_T` is the sequence index of each token, 0..S-1;
    `turn_T` is the index of its turn, a contiguous run of trained tokens.
    """

    logp_T: Tensor
    entropy_T: Tensor
    weight_T: Tensor
    seq_T: Tensor
    turn_T: Tensor
    advantage_T: Tensor
    old_logp_T: Tensor
    sampled_logp_T: Tensor
    ref_logp_T: Tensor
    num_sequences: int
    teacher_kl_T: Tensor | None = None
    teacher_weight_T: Tensor | None = None
    current_version_T: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossEntropyLoss:
    """Loss of supervised fine-tuning: L = -sum(w * logp) / total weight of the step."""

    def __call__(self, batch: TokenBatch, total: float) -> tuple[Tensor, Metrics]:
        loss = -(batch.weight_T * batch.logp_T).sum() / total
        return loss, {"loss": loss.detach()}


@dataclass(frozen=True, kw_only=True, slots=True)
class ContrastiveLoss:
    """Step-level contrastive loss of AutoCoA's SFT-1 (arXiv 2503.06580, section 3.2.2).

    Sequences 2p and 2p+1 are the chosen and the rejected step of pair p. With P the mean token
    log-probability of a step: L = -log sigmoid(P_chosen - P_rejected) - alpha * P_chosen, mean over
    pairs.
    """

    alpha: float = 0.2

    def __call__(self, batch: TokenBatch, total: float) -> tuple[Tensor, Metrics]:
        zeros_S = batch.logp_T.new_zeros(batch.num_sequences)
        sum_S = zeros_S.index_add(0, batch.seq_T, batch.weight_T * batch.logp_T)
        count_S = zeros_S.index_add(0, batch.seq_T, batch.weight_T)
        mean_P2 = (sum_S / count_S).view(-1, 2)
        chosen_P, rejected_P = mean_P2[:, 0], mean_P2[:, 1]
        loss = (-logsigmoid(chosen_P - rejected_P) - self.alpha * chosen_P).sum() / total
        return loss, {
            "loss": loss.detach(),
            "pair_accuracy": (chosen_P > rejected_P).float().sum() / total,
            "chosen_logp": chosen_P.detach().sum() / total,
            "rejected_logp": rejected_P.detach().sum() / total,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyGradientLoss:
    """Policy-gradient surrogate; each algorithm of the family is a setting of it.

    Per token, with log-ratios clamped to +-20 and A the advantage:

        loss = -u * gain + kl_coef * k3 - entropy_coef * entropy + llds_coef * llds

    gain: `clip="ppo"`: min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) (arXiv 1707.06347;
        asymmetric clipping as in DAPO, arXiv 2503.14476), and with `dual_clip` c at least c A if A
        < 0 (arXiv 1912.09729). `clip="cispo"`: the clipped ratio, as a constant, times A logp
        (arXiv 2506.13585).
    r: `ratio="token"`: exp(logp - old_logp). `ratio="sequence"`: the geometric mean of the token
        ratios over the sequence, with the gradient through each token's own logp (GSPO-token, arXiv
        2507.18071, section 4.3).
    u: min(pi_old / pi_sampler, importance_cap), per token or per sequence (product over its
        tokens). If `reject` is set, a token is trained only if pi_old / pi_sampler is within
        [reject_low, reject_high]: per token, per sequence, or as the geometric mean of the
        sequence.
    k3: exp(d) - d - 1 with d = ref - logp (arXiv 2402.03300), clamped to at most 10, as in verl's
        `low_var_kl`; the gradient is 0 above that.
    llds: decrease of a token's log-probability in turns that became less likely, in rollouts with A
        >= 0 (arXiv 2512.04220); decreases below 0.001 are noise and count as 0.

    u and the rejection mask are constants. Rejected tokens still count in `total`.
    """

    ratio: Literal["token", "sequence"] = "token"
    clip: Literal["ppo", "cispo"] = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    importance: Literal["token", "sequence"] = "token"
    importance_cap: float | None = None
    reject: RejectLevel | None = None
    reject_low: float = 0.5
    reject_high: float = 2.0
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    llds_coef: float = 0.0

    def __call__(self, batch: TokenBatch, total: float) -> tuple[Tensor, Metrics]:
        ratio_T = self._policy_ratio(batch)
        objective_T, clipped_T = self._clipped_objective(ratio_T, batch)
        importance_T, accepted_T = self._sampler_correction(batch)
        loss_T = -importance_T * objective_T
        if self.entropy_coef:
            loss_T = loss_T - self.entropy_coef * batch.entropy_T
        w_T = batch.weight_T
        metrics = {
            "entropy": w_T * batch.entropy_T,
            "ratio_mean": w_T * ratio_T,
            "clip_fraction": w_T * clipped_T,
            "log_ratio_abs": w_T * (batch.logp_T - batch.sampled_logp_T).abs(),
            "sampler_logp_diff": w_T * _sampler_logp_difference(batch),
        }
        if self.kl_coef:
            delta_T = (batch.ref_logp_T - batch.logp_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
            kl_T = (delta_T.exp() - delta_T - 1).clamp(max=MAX_K3)
            loss_T = loss_T + self.kl_coef * kl_T
            metrics["kl_ref"] = w_T * kl_T
        if self.llds_coef:
            llds_T = _llds_penalty(batch)
            loss_T = loss_T + self.llds_coef * llds_T
            metrics["llds"] = w_T * llds_T
        if self.importance_cap is not None:
            metrics["sampler_is_weight"] = w_T * importance_T
        if self.reject is not None:
            metrics["sampler_rejected_rate"] = w_T * (1 - accepted_T)
        loss = (w_T * accepted_T * loss_T).sum() / total
        sums = {name: value_T.detach().sum() / total for name, value_T in metrics.items()}
        return loss, {"loss": loss.detach(), **sums}

    def _policy_ratio(self, batch: TokenBatch) -> Tensor:
        """Return the ratio r of the policy to the policy at the start of the step."""
        log_ratio_T = (batch.logp_T - batch.old_logp_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        if self.ratio == "sequence":
            mean_T = _reduce_over_sequence(log_ratio_T.detach(), batch, mean=True)
            log_ratio_T = mean_T + batch.logp_T - batch.logp_T.detach()
        return log_ratio_T.exp()

    def _clipped_objective(self, ratio_T: Tensor, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return the gain, and a mask of the tokens whose gain was clipped."""
        adv_T = batch.advantage_T
        bounded_T = ratio_T.clamp(1 - self.clip_low, 1 + self.clip_high)
        if self.clip == "cispo":
            return bounded_T.detach() * adv_T * batch.logp_T, bounded_T != ratio_T
        objective_T = torch.minimum(ratio_T * adv_T, bounded_T * adv_T)
        if self.dual_clip is not None:
            floor_T = torch.where(adv_T < 0, self.dual_clip * adv_T, -torch.inf)
            objective_T = torch.maximum(objective_T, floor_T)
        return objective_T, objective_T != ratio_T * adv_T

    def _sampler_correction(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Return the importance weight between sampler and trainer, and a mask that is 1 for
        accepted tokens."""
        importance_T = torch.ones_like(batch.weight_T)
        if self.importance_cap is not None:
            importance_T = _sampler_ratio(batch, self.importance).clamp(max=self.importance_cap)
        accepted_T = mask_accepted(batch, self.reject, self.reject_low, self.reject_high)
        return importance_T, accepted_T


def mask_accepted(batch: TokenBatch, level: RejectLevel | None, low: float, high: float) -> Tensor:
    """Return a mask that is 1 for tokens whose pi_old / pi_sampler is within the bounds; without a
    level, for all tokens."""
    if level is None:
        return torch.ones_like(batch.weight_T)
    ratio_T = _sampler_ratio(batch, level)
    return ((ratio_T >= low) & (ratio_T <= high)).to(batch.weight_T.dtype)


def _sampler_ratio(batch: TokenBatch, level: RejectLevel) -> Tensor:
    """Return pi_old / pi_sampler of each token, of its sequence, or their geometric mean."""
    log_T = batch.old_logp_T - batch.sampled_logp_T
    if level != "token":
        log_T = _reduce_over_sequence(log_T, batch, mean=level == "geometric")
    return log_T.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _sampler_logp_difference(batch: TokenBatch) -> Tensor:
    """Return the absolute difference between the trainer's and the sampler's log-probabilities; 0
    for tokens of older policy versions."""
    difference_T = (batch.logp_T - batch.sampled_logp_T).abs()
    return (
        difference_T if batch.current_version_T is None else batch.current_version_T * difference_T
    )


def _reduce_over_sequence(x_T: Tensor, batch: TokenBatch, *, mean: bool) -> Tensor:
    """Return the sum or mean of x over the trained tokens of each token's sequence."""
    trained_T = (batch.weight_T > 0).to(x_T.dtype)
    zeros_S = x_T.new_zeros(batch.num_sequences)
    sum_S = zeros_S.index_add(0, batch.seq_T, x_T * trained_T)
    if mean:
        sum_S = sum_S / zeros_S.index_add(0, batch.seq_T, trained_T).clamp(min=1)
    return sum_S[batch.seq_T]


def _llds_penalty(batch: TokenBatch) -> Tensor:
    """Return max(0, old - logp) for turns that became less likely, in rollouts with A >= 0."""
    fall_T = (batch.old_logp_T - batch.logp_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    fall_T = torch.where(fall_T.abs() < LLDS_TOLERANCE, 0 * fall_T, fall_T)
    trained_T = (batch.weight_T > 0).to(fall_T.dtype)
    turns = int(batch.turn_T.max()) + 1
    fall_R = fall_T.new_zeros(turns).index_add(0, batch.turn_T, fall_T.detach() * trained_T)
    fell_T = (fall_R[batch.turn_T] > 0) & (batch.advantage_T >= 0)
    return fell_T * fall_T.clamp(min=0)


@dataclass(frozen=True, slots=True)
class ValueBatch:
    """A micro-batch of the critic, all of shape T: current value of the context before each token,
    loss weight, value at the start of the step, and target return."""

    value_T: Tensor
    weight_T: Tensor
    old_value_T: Tensor
    target_T: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueLoss:
    """Clipped critic loss of OpenAI's PPO: 0.5 max((V - R)^2, (V' - R)^2), where V' is the value
    clamped to within `clip` of the old one. It bounds the incentive to move a value far."""

    clip: float

    def __call__(self, batch: ValueBatch, total: float) -> tuple[Tensor, Metrics]:
        w_T, value_T, target_T = batch.weight_T, batch.value_T, batch.target_T
        near_T = batch.old_value_T + (value_T - batch.old_value_T).clamp(-self.clip, self.clip)
        far_T, bounded_T = (value_T - target_T) ** 2, (near_T - target_T) ** 2
        loss = 0.5 * (w_T * torch.maximum(far_T, bounded_T)).sum() / total
        return loss, {
            "loss": loss.detach(),
            "value": (w_T * value_T.detach()).sum() / total,
            "clip_fraction": (w_T * (bounded_T > far_T)).sum() / total,
        }


class LossFunction(Protocol):
    """Loss function over a micro-batch; loss and metrics are sums divided by `total`."""

    def __call__(self, batch: TokenBatch, total: float) -> tuple[Tensor, Metrics]: ...
