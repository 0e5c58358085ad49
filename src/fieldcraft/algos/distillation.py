"""Per-token reverse KL from a student to a teacher, and the distillation loss.

Shape letters: T tokens of a micro-batch, V vocabulary entries. p is the student's distribution at a
position of its own rollout and q is the teacher's at the same position, both at the sampling
temperature.

On-policy distillation minimises KL(p || q) = sum over v of p_v (log p_v - log q_v) at the positions
that the student visits (GKD, arXiv 2306.13649; MiniLLM, arXiv 2306.08543, for the reverse
direction). As in GKD, the sampled positions are constants: no gradient flows through the sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldcraft.algos.losses import MAX_LOG_RATIO, Metrics, PolicyGradientLoss, TokenBatch

MAX_CHUNK_ELEMENTS = (
    2**22
)  # logits are normalised in chunks of rows with at most this number of elements


def compute_teacher_advantages(logp_T: NDArray[Any], teacher_logp_T: NDArray[Any]) -> NDArray[Any]:
    """Return log q - log p of each sampled token, clamped to +-20, as the policy-gradient
    advantage.

    Its expectation over the student's tokens is -KL(p || q). The expectation of advantage times
    grad log p is -grad KL(p || q), because the omitted term, the mean of grad log p, is 0. Each
    token is credited only with its own log-ratio (a discount of 0), as in Thinking Machines'
    "On-Policy Distillation" (2025, thinkingmachines.ai/blog/on-policy-distillation)."""
    return (teacher_logp_T - logp_T).clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def reverse_kl(logits_TV: Tensor, teacher_TV: Tensor, top_k: int | None = None) -> Tensor:
    """Return KL(p || q) of each token in nats; shape T. It is differentiable in the student's
    logits. For equal logits the value and the gradient are exactly 0.

    With `top_k`, all tokens except the student's k most likely ones form one bucket, so k + 1
    probabilities are compared (as in SDPO, arXiv 2601.20802). The result is at most the full KL,
    and equals it if k is V.

    Models with the same tokenizer may have padded output layers of different widths; only the
    entries that both have are compared.
    """
    width = min(logits_TV.shape[-1], teacher_TV.shape[-1])
    kl_T: Tensor = _ReverseKL.apply(logits_TV[:, :width], teacher_TV[:, :width], top_k)
    return kl_T


class _ReverseKL(torch.autograd.Function):
    """Autograd function of the reverse KL. With d_v the log-ratio of token v, or of its bucket, the
    KL is sum of p_v d_v, and its derivative with respect to logit v is p_v (d_v - KL).

    Both are computed in chunks of rows, so that only one array of the size of the logits is
    allocated in addition to the two inputs: the gradient. Autograd would keep four.
    """

    @staticmethod
    def forward(ctx: Any, logits_TV: Tensor, teacher_TV: Tensor, top_k: int | None) -> Tensor:
        ctx.save_for_backward(logits_TV, teacher_TV)
        ctx.top_k = top_k
        kl_T = logits_TV.new_empty(len(logits_TV))
        for rows in _split_rows(logits_TV):
            p_RV, ratio_RV = _compute_log_ratios(logits_TV[rows], teacher_TV[rows], top_k)
            kl_T[rows] = (p_RV * ratio_RV).sum(-1)
        return kl_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None, None]:
        logits_TV, teacher_TV = ctx.saved_tensors
        grad_TV = torch.empty_like(logits_TV)
        for rows in _split_rows(logits_TV):
            p_RV, ratio_RV = _compute_log_ratios(logits_TV[rows], teacher_TV[rows], ctx.top_k)
            ratio_RV -= (p_RV * ratio_RV).sum(-1, keepdim=True)
            grad_TV[rows] = p_RV.mul_(ratio_RV).mul_(grad_T[rows, None])
        return grad_TV, None, None


def _split_rows(logits_TV: Tensor) -> Iterator[slice]:
    rows = max(MAX_CHUNK_ELEMENTS // logits_TV.shape[1], 1)
    for start in range(0, len(logits_TV), rows):
        yield slice(start, start + rows)


def _compute_log_ratios(
    logits_RV: Tensor, teacher_RV: Tensor, top_k: int | None
) -> tuple[Tensor, Tensor]:
    """Return the student's probabilities, and log p - log q of each token or of its bucket."""
    logp_RV, logq_RV = logits_RV.log_softmax(-1), teacher_RV.log_softmax(-1)
    ratio_RV = logp_RV - logq_RV
    if top_k is not None and top_k < logits_RV.shape[1]:
        top_RK = logp_RV.topk(top_k, dim=-1).indices
        rest_p_R1 = logp_RV.scatter(1, top_RK, -torch.inf).logsumexp(-1, keepdim=True)
        rest_q_R1 = logq_RV.scatter(1, top_RK, -torch.inf).logsumexp(-1, keepdim=True)
        top_ratio_RK = ratio_RV.gather(1, top_RK)
        ratio_RV = (rest_p_R1 - rest_q_R1).expand_as(ratio_RV).scatter(1, top_RK, top_ratio_RK)
    return logp_RV.exp(), ratio_RV


@dataclass(frozen=True, kw_only=True, slots=True)
class DistillationLoss:
    """Sum of the policy-gradient surrogate and the reverse KL of each trained token to the teacher:
    L = surrogate + sum(w * KL(p || q)) / total.

    Without rewards the advantages are 0, and only the KL term remains.
    """

    policy_loss: PolicyGradientLoss

    def __call__(self, batch: TokenBatch, total: float) -> tuple[Tensor, Metrics]:
        assert batch.teacher_kl_T is not None, "teacher_kl_T is missing from the batch"
        loss, metrics = self.policy_loss(batch, total)
        kl_T = batch.weight_T * batch.teacher_kl_T
        loss = loss + kl_T.sum() / total
        kl = kl_T.detach().sum() / total
        return loss, metrics | {"loss": loss.detach(), "teacher_kl": kl}
