"""Token log-probabilities and entropies. Shape letters: T tokens, V vocabulary entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


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
