"""Scores of tokens from logits: log-probability, entropy and reverse KL to a teacher.

Shape letters: T tokens, R tokens of a chunk, V vocabulary entries. p is the student's distribution
at a position of its own rollout and q is the teacher's at the same position, both at the sampling
temperature.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# The reverse KL normalises logits in chunks of rows with at most this number of elements.
MAX_CHUNK_ELEMENTS = 2**22


def logp_and_entropy(logits_TV: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor]:
    """Return log softmax(logits) at the targets and the entropy of softmax(logits) in nats, both of
    shape T. Both are differentiable once."""
    result: tuple[Tensor, Tensor] = _LogpAndEntropy.apply(logits_TV, targets_T)
    return result


class _LogpAndEntropy(torch.autograd.Function):
    """Memory-efficient log-probability and entropy. Forward and backward pass each allocate one
    array of the size of the logits; autograd would keep three for the entropy alone."""

    @staticmethod
    def forward(ctx: Any, logits_TV: Tensor, targets_T: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        logp_T, entropy_T, lse_T = logp_entropy_logsumexp(
            logits_TV, targets_T, torch.empty_like(logits_TV)
        )
        ctx.save_for_backward(logits_TV, targets_T, lse_T, entropy_T)
        return logp_T, entropy_T

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, logp_grad_T: Tensor | None, entropy_grad_T: Tensor | None
    ) -> tuple[Tensor, None]:
        logits_TV, targets_T, lse_T, entropy_T = ctx.saved_tensors
        logp_TV = logits_TV - lse_T[:, None]
        return logits_grad(logp_TV, targets_T, entropy_T, logp_grad_T, entropy_grad_T), None


def logp_entropy_logsumexp(
    logits_TV: Tensor, targets_T: Tensor, buffer_TV: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-probabilities of the targets, the entropies and the log-sum-exp of the logits,
    each of shape T. `buffer_TV` is overwritten."""
    largest_T1 = logits_TV.amax(-1, keepdim=True)
    torch.sub(logits_TV, largest_T1, out=buffer_TV).exp_()
    sum_T = buffer_TV.sum(-1)
    lse_T = largest_T1[:, 0] + sum_T.log()
    mean_T = torch.einsum("tv,tv->t", buffer_TV, logits_TV) / sum_T
    logp_T = logits_TV.gather(1, targets_T[:, None])[:, 0] - lse_T
    return logp_T, lse_T - mean_T, lse_T


def logits_grad(
    logp_TV: Tensor,
    targets_T: Tensor,
    entropy_T: Tensor,
    logp_grad_T: Tensor | None,
    entropy_grad_T: Tensor | None,
) -> Tensor:
    """Return the gradient with respect to the logits: g (1[v = target] - p_v) - h p_v (log p_v +
    H), where g and h are the gradients with respect to the log-probability and the entropy H.
    `logp_TV` contains the log-probabilities of all tokens and is overwritten."""
    if entropy_grad_T is None:
        grad_TV = logp_TV.exp_()
        if logp_grad_T is None:
            return grad_TV.zero_()
        grad_TV.mul_(-logp_grad_T[:, None])
    else:
        grad_TV = logp_TV.exp()
        logp_TV.add_(entropy_T[:, None]).mul_(-entropy_grad_T[:, None])
        if logp_grad_T is not None:
            logp_TV.sub_(logp_grad_T[:, None])
        grad_TV.mul_(logp_TV)
    if logp_grad_T is not None:
        grad_TV.scatter_add_(1, targets_T[:, None], logp_grad_T[:, None])
    return grad_TV


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
