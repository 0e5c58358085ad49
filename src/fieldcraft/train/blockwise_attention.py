"""Attention of packed runs on CPUs, in blocks without masks or wasted products.

A run attends causally to itself, and all runs that continue a parent run attend to the parent at
once. The kernel also returns the log-sum-exp of the scores, which merges the partial results of a
query; with the total log-sum-exp, the gradient of each block is exact. A run of n tokens after p
others takes n p + n^2 / 2 products, while a mask takes n (p + n), and the parent is neither copied
nor repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldcraft.train.batch import TokenRun

# The kernel behind `scaled_dot_product_attention` on CPUs, which also returns the log-sum-exp.
KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
KERNEL_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
# Gradients of fewer queries are faster in float32 than in 16 bits: 60 queries take a quarter of the
# time, while 2,048 take 1.3 times as long.
MIN_BF16_GRAD_QUERIES = 512


class ScoreBlock(NamedTuple):
    """Block of the score matrix: a range of queries and a range of keys. A causal block has the
    queries and keys of one run; in a non-causal block each query sees all keys."""

    queries: slice
    keys: slice
    is_causal: bool


def supports_cpu_kernel(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether torch's fused CPU kernel supports these tensors."""
    same_layout = all(x.is_cpu and x.stride(-1) == 1 for x in (query, key, value))
    return same_layout and query.shape[-1] == key.shape[-1] == value.shape[-1]


def blockwise_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    runs: tuple[TokenRun, ...],
    local_runs: tuple[int, ...],
    scaling: float | None,
) -> Tensor:
    """Compute the attention of the runs `local_runs`, concatenated: `query` [1, Hq, n, D] gives [1,
    n, Hq, D]. `key` and `value` [1, H, N, D] cover all runs; each of their heads serves Hq / H
    heads of `query`."""
    output: Tensor = _BlockwiseAttention.apply(
        query, key, value, split_blocks(runs, local_runs), scaling
    )
    return output


@lru_cache(maxsize=2)  # shared by all layers of a model
def split_blocks(runs: tuple[TokenRun, ...], local_runs: tuple[int, ...]) -> tuple[ScoreBlock, ...]:
    """Return the blocks of the score matrix, causal ones first: these cover each query once."""
    ends = accumulate((runs[place].size for place in local_runs), initial=0)
    queries = [slice(*both) for both in pairwise(ends)]
    causal = [
        ScoreBlock(query_slice, slice(runs[place].start, runs[place].end), True)
        for query_slice, place in zip(queries, local_runs, strict=True)
    ]
    readers_by_run: dict[int, list[slice]] = {}
    for query_slice, place in zip(queries, local_runs, strict=True):
        for ancestor in trace_ancestors(place, runs)[:-1]:
            readers_by_run.setdefault(ancestor, []).append(query_slice)
    shared = [
        ScoreBlock(query_slice, slice(runs[place].start, runs[place].end), False)
        for place, each in readers_by_run.items()
        for query_slice in _merge_slices(each)
    ]
    return (*causal, *shared)


def trace_ancestors(place: int, runs: tuple[TokenRun, ...]) -> list[int]:
    """Return the indices of the runs that a run continues, first to last, and its own index."""
    parent = runs[place].parent
    return [*([] if parent is None else trace_ancestors(parent, runs)), place]


def _merge_slices(slices: list[slice]) -> Iterator[slice]:
    """Yield the same positions in as few slices as possible."""
    first, *others = slices
    for other in others:
        if other.start == first.stop:
            first = slice(first.start, other.stop)
        else:
            yield first
            first = other
    yield first


class _BlockwiseAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        blocks: tuple[ScoreBlock, ...],
        scaling: float | None,
    ) -> Tensor:
        exact = torch.promote_types(query.dtype, torch.float32)
        _, heads, count, size = query.shape
        output = query.new_empty((1, count, heads, size), dtype=exact).transpose(1, 2)
        lse = query.new_empty((1, heads, count), dtype=exact)
        for query_slice, key_slice, is_causal in blocks:
            keys, values = key[:, :, key_slice], value[:, :, key_slice]
            block_output, block_lse = KERNEL(
                query[:, :, query_slice], keys, values, 0.0, is_causal, scale=scaling
            )
            if is_causal:
                output[:, :, query_slice], lse[:, :, query_slice] = block_output, block_lse
            else:
                _merge_block(
                    output[:, :, query_slice], lse[:, :, query_slice], block_output, block_lse
                )
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.blocks, ctx.scaling = blocks, scaling
        return output.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, output, lse = ctx.saved_tensors
        output_grad = grad.contiguous().transpose(1, 2)
        grads = [torch.zeros_like(x) for x in (query, key, value)]
        for query_slice, key_slice, is_causal in ctx.blocks:
            dtype = (
                lse.dtype
                if query_slice.stop - query_slice.start < MIN_BF16_GRAD_QUERIES
                else query.dtype
            )
            grad_output, q, out = (
                x[:, :, query_slice].to(dtype) for x in (output_grad, query, output)
            )
            k, v = (x[:, :, key_slice].to(dtype) for x in (key, value))
            block_grads = KERNEL_BACKWARD(
                grad_output, q, k, v, out, lse[:, :, query_slice], 0.0, is_causal, scale=ctx.scaling
            )
            for full_grad, block_slice, block_grad in zip(
                grads, (query_slice, key_slice, key_slice), block_grads, strict=True
            ):
                full_grad[:, :, block_slice] += block_grad
        return grads[0], grads[1], grads[2], None, None


def _merge_block(output: Tensor, lse: Tensor, block_output: Tensor, block_lse: Tensor) -> None:
    """Merge the result of another block for the same queries into `output` [..., n, D], with
    log-sum-exps [..., n]."""
    weight = torch.sigmoid(block_lse - lse)
    output.lerp_(block_output.to(output.dtype), weight[..., None])
    lse.copy_(torch.logaddexp(lse, block_lse))
