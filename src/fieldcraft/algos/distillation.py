"""The reverse KL from a student to a teacher, token by token, and the loss that contains it.

Letters: T tokens of a micro-batch, V words. p is the student's distribution at a position of its
own rollout, q the teacher's at the same position; both at the temperature of sampling.

On-policy distillation minimises KL(p || q) = sum over v of p_v (log p_v - log q_v) at the positions
that the student itself visits (GKD, arXiv 2306.13649; MiniLLM, arXiv 2306.08543, for the reverse
direction). Where the student goes is a constant, as in GKD: nothing flows through its sampling.
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
)  # numbers of a chunk: rows of vocabulary size are never all normalised at once


def compute_teacher_advantages(logp_T: NDArray[Any], teacher_logp_T: NDArray[Any]) -> NDArray[Any]:
    """Return log q - log p of each token that was sampled, within +-20: the advantage of policy
    gradient.

    Its expectation over the student's tokens is -KL(p || q), and that of advantage times
    grad log p is -grad KL(p || q): the term that is missing, the mean of grad log p, is 0. A token
    pays for itself alone (a discount of 0), as in Thinking Machines' "On-Policy Distillation"
    (2025, thinkingmachines.ai/blog/on-policy-distillation).
    """
    return (teacher_logp_T - logp_T).clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def reverse_kl(logits_TV: Tensor, teacher_TV: Tensor, top_k: int | None = None) -> Tensor:
    """Return KL(p || q) of each token in nats; shape T. It is differentiable in the student's
    logits, and exactly 0 with a gradient of exactly 0 where both have the same.

    With `top_k` all tokens but the student's k likeliest are one: k + 1 probabilities are compared
    (as in SDPO, arXiv 2601.20802). That is at most the whole KL, and equal to it if k is V.

    Models of one tokenizer may have output layers of different widths, which are padded; then the
    words that both have are compared.
    """
    width = min(logits_TV.shape[-1], teacher_TV.shape[-1])
    kl_T: Tensor = _ReverseKL.apply(logits_TV[:, :width], teacher_TV[:, :width], top_k)
    return kl_T


class _ReverseKL(torch.autograd.Function):
    """The reverse KL and its gradient. With d_v the log-ratio of word v, or of the bucket that it
    is in, KL = sum of p_v d_v, and its derivative by logit v is p_v (d_v - KL).

    Both are computed in chunks of rows, so that beside the two logits there is one more array of
    their size, the gradient; autograd would keep four.
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
    """Return the student's probabilities, and log p - log q of each word or of its bucket."""
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
    """The surrogate, and beside it the reverse KL of every trained token to the teacher:
    L = surrogate + sum(w * KL(p || q)) / total.

    Without rewards the advantages of the surrogate are 0, and what is left is the KL.
    """

    policy_loss: PolicyGradientLoss

    def __call__(self, batch: TokenBatch, total: float) -> tuple[Tensor, Metrics]:
        assert batch.teacher_kl_T is not None, "the step was given no teacher"
        loss, metrics = self.policy_loss(batch, total)
        kl_T = batch.weight_T * batch.teacher_kl_T
        loss = loss + kl_T.sum() / total
        kl = kl_T.detach().sum() / total
        return loss, metrics | {"loss": loss.detach(), "teacher_kl": kl}
