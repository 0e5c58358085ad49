"""Attention of packed runs on CPUs, in parts that need no mask and throw nothing away.

A run attends causally to itself, and all runs that continue another one attend to that at once. The
kernel gives the log of the sum of exp(scores) beside its result, by which the results of a query
are joined; with those of the whole its gradient is exact for each part. A run of n tokens behind p
others takes n p + n^2 / 2 products, where a mask takes n (p + n), and what it continues is neither
copied nor repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldcraft.train.batch import Run

# What `scaled_dot_product_attention` calls on CPUs, with the log-sums that this leaves out.
KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
KERNEL_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
# Gradients of fewer queries are faster in float32 than in 16 bits: those of 60 take a quarter of
# the time, while those of 2,048 take 1.3 times as long.
FEW = 512


class ScoreBlock(NamedTuple):
    """Part of all scores: which queries look at which keys. Where it is causal, both are those of
    one run; where it is not, each of the queries sees all of the keys."""

    queries: slice
    keys: slice
    is_causal: bool


def has_kernel(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether torch's fused kernel for CPUs can compute this."""
    together = all(x.is_cpu and x.stride(-1) == 1 for x in (query, key, value))
    return together and query.shape[-1] == key.shape[-1] == value.shape[-1]


def attend_in_parts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    runs: tuple[Run, ...],
    held: tuple[int, ...],
    scaling: float | None,
) -> Tensor:
    """Compute the attention of the runs `held`, one after the other: `query` [1, Hq, n, D] gives
    [1, n, Hq, D]. `key` and `value` [1, H, N, D] are those of all runs; each of their heads serves
    as many of `query`."""
    mixed: Tensor = _InParts.apply(query, key, value, blocks_of(runs, held), scaling)
    return mixed


@lru_cache(maxsize=2)  # all layers of a model ask for the same
def blocks_of(runs: tuple[Run, ...], held: tuple[int, ...]) -> tuple[ScoreBlock, ...]:
    """Return the parts of all scores, the causal ones first: they meet each query once."""
    ends = accumulate((runs[place].size for place in held), initial=0)
    queries = [slice(*both) for both in pairwise(ends)]
    own = [
        ScoreBlock(asking, slice(runs[place].start, runs[place].end), True)
        for asking, place in zip(queries, held, strict=True)
    ]
    seen_by: dict[int, list[slice]] = {}
    for asking, place in zip(queries, held, strict=True):
        for before in way(place, runs)[:-1]:
            seen_by.setdefault(before, []).append(asking)
    others = [
        ScoreBlock(asking, slice(runs[place].start, runs[place].end), False)
        for place, each in seen_by.items()
        for asking in _joined(each)
    ]
    return (*own, *others)


def way(place: int, runs: tuple[Run, ...]) -> list[int]:
    """Return the places of the runs that a run continues, first to last, and its own."""
    after = runs[place].after
    return [*([] if after is None else way(after, runs)), place]


def _joined(slices: list[slice]) -> Iterator[slice]:
    """Yield the same places in as few slices as possible."""
    first, *others = slices
    for other in others:
        if other.start == first.stop:
            first = slice(first.start, other.stop)
        else:
            yield first
            first = other
    yield first


class _InParts(torch.autograd.Function):
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
        mixed = query.new_empty((1, count, heads, size), dtype=exact).transpose(1, 2)
        sums = query.new_empty((1, heads, count), dtype=exact)
        for asking, seen, is_causal in blocks:
            keys, values = key[:, :, seen], value[:, :, seen]
            found, found_sums = KERNEL(
                query[:, :, asking], keys, values, 0.0, is_causal, scale=scaling
            )
            if is_causal:
                mixed[:, :, asking], sums[:, :, asking] = found, found_sums
            else:
                _join(mixed[:, :, asking], sums[:, :, asking], found, found_sums)
        mixed = mixed.to(query.dtype)
        ctx.save_for_backward(query, key, value, mixed, sums)
        ctx.blocks, ctx.scaling = blocks, scaling
        return mixed.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, mixed, sums = ctx.saved_tensors
        mixed_grad = grad.contiguous().transpose(1, 2)
        grads = [torch.zeros_like(x) for x in (query, key, value)]
        for asking, seen, is_causal in ctx.blocks:
            dtype = sums.dtype if asking.stop - asking.start < FEW else query.dtype
            of_mixed, q, made = (x[:, :, asking].to(dtype) for x in (mixed_grad, query, mixed))
            k, v = (x[:, :, seen].to(dtype) for x in (key, value))
            found = KERNEL_BACKWARD(
                of_mixed, q, k, v, made, sums[:, :, asking], 0.0, is_causal, scale=ctx.scaling
            )
            for whole, places, part in zip(grads, (asking, seen, seen), found, strict=True):
                whole[:, :, places] += part
        return grads[0], grads[1], grads[2], None, None


def _join(mixed: Tensor, sums: Tensor, others: Tensor, other_sums: Tensor) -> None:
    """Add what the same queries found elsewhere to `mixed` [..., n, D], with log-sums [..., n]."""
    share = torch.sigmoid(other_sums - sums)
    mixed.lerp_(others.to(mixed.dtype), share[..., None])
    sums.copy_(torch.logaddexp(sums, other_sums))
