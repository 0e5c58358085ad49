"""Context parallelism: the tokens of one micro-batch are split over several ranks.

The sequence of N tokens is padded and split into 2 C chunks, and rank r of C holds the chunks r and
2 C - 1 - r: attention is causal, so this balances the work. Keys and values are all-gathered in
every layer. A run that crosses a chunk border is split into a run and its continuation, so the
prefix forest of a packed batch is preserved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from fieldcraft.train.batch import PackedBatch, TokenRun

ProcessGroup = distributed.ProcessGroup


@final
@dataclass(frozen=True, eq=False)
class ContextShard:
    """Shard of a packed sequence on one rank: n of N tokens, and t of the T trained ones.

    `runs` are the runs of the whole sequence, split at chunk borders, and `local_runs` the indices
    of those on this rank, in order. `local_T` are the indices of the trained tokens that are
    predicted on this rank, `from_t` the positions in n that predict them.
    """

    ids_n: Tensor
    position_n: Tensor
    runs: Sequence[TokenRun]
    local_runs: Sequence[int]
    local_T: Tensor
    from_t: Tensor
    group: ProcessGroup

    def all_gather(self, local: Tensor) -> Tensor:
        """Gather the whole sequence from all ranks: [..., n, D] gives [..., N, D]."""
        count = self.group.size()
        early_late: list[tuple[Tensor, Tensor]] = [
            chunk.chunk(2, -2) for chunk in _AllGather.apply(local, self.group).unbind(0)
        ]
        early = [early_late[rank][0] for rank in range(count)]
        late = [early_late[rank][1] for rank in reversed(range(count))]
        return torch.cat([*early, *late], -2)

    def all_gather_tokens(self, values_t: Tensor, count: int) -> Tensor:
        """Gather the values of all T trained tokens from the values computed on each rank: [t, ...]
        to [T, ...]."""
        if self.group.size() == 1:
            return values_t
        values_T: Tensor = _AllGatherTokens.apply(
            values_t, self.local_T.to(values_t.device), count, self.group
        )
        return values_T


def shard_batch(batch: PackedBatch, rank: int, group: ProcessGroup) -> ContextShard:
    """Return the shard of a packed batch on a rank of a group; the whole batch if the group has one
    rank."""
    count = group.size()
    if count == 1:
        all_runs, local_T = range(len(batch.runs)), torch.arange(len(batch.ids_T))
        return ContextShard(
            batch.ids_N, batch.position_N, batch.runs, all_runs, local_T, batch.from_T, group
        )
    size = -(-len(batch.ids_N) // (2 * count))  # tokens of a chunk
    padding = 2 * count * size - len(batch.ids_N)
    ids_N = torch.nn.functional.pad(batch.ids_N, (0, padding))
    position_N = torch.cat([batch.position_N, torch.arange(padding)])
    last = len(batch.ids_N)
    padded = [*batch.runs, *([TokenRun(last, last + padding, None)] if padding else [])]
    runs = list(split_runs(padded, size))
    pieces = (rank, 2 * count - 1 - rank)
    local_n = torch.cat([torch.arange(piece * size, (piece + 1) * size) for piece in pieces])
    index_N = torch.full((len(ids_N),), -1)
    index_N[local_n] = torch.arange(len(local_n))
    from_T = index_N[batch.from_T]
    local_T = (from_T >= 0).nonzero()[:, 0]
    local_runs = [p for piece in pieces for p, run in enumerate(runs) if run.start // size == piece]
    return ContextShard(
        ids_N[local_n], position_N[local_n], runs, local_runs, local_T, from_T[local_T], group
    )


def split_runs(runs: Sequence[TokenRun], size: int) -> Iterator[TokenRun]:
    """Yield the runs split at multiples of `size`. Example: with a size of 4, the run from 2 to 9
    becomes the runs from 2 to 4, 4 to 8 and 8 to 9, each of which continues the previous one."""
    last_pieces: list[int] = []  # index of the last piece of each run
    num_pieces = 0
    for run in runs:
        borders = range((run.start // size + 1) * size, run.end, size)
        parent = None if run.parent is None else last_pieces[run.parent]
        for start, end in pairwise([run.start, *borders, run.end]):
            yield TokenRun(start, end, parent)
            parent, num_pieces = num_pieces, num_pieces + 1
        last_pieces.append(num_pieces - 1)


class _AllGather(torch.autograd.Function):
    """All-gather with gradients: [...] on each of C ranks gives [C, ...] on all ranks. Gradients
    are summed in float32."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(group.size())]
        distributed.all_gather(parts, part, group)
        return torch.stack(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        part = grad.new_empty(grad.shape[1:], dtype=torch.float32)
        distributed.reduce_scatter(part, list(grad.float().contiguous()), group=ctx.group)
        return part.to(grad.dtype), None


class _AllGatherTokens(torch.autograd.Function):
    """All-gather of values [t, ...] at given positions of T. Each rank then computes the same loss,
    so the gradient of the local values is the local slice."""

    @staticmethod
    def forward(
        ctx: Any, values_t: Tensor, local_T: Tensor, count: int, group: ProcessGroup
    ) -> Tensor:
        ctx.save_for_backward(local_T)
        full_T = values_t.new_zeros((count, *values_t.shape[1:]))
        full_T[local_T] = values_t
        distributed.all_reduce(full_T, group=group)
        return full_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None, None, None]:
        (local_T,) = ctx.saved_tensors
        return grad_T[local_T], None, None, None
