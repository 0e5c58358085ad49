"""Context parallelism: the tokens of one micro-batch lie on several ranks.

The line of N tokens is padded and cut into 2 C pieces, and rank r of C holds the pieces r and
2 C - 1 - r: since a token sees those before it, each rank then has the same work. Keys and values
are gathered in every layer. A run that crosses a border becomes a run and one that continues it, so
the forest of a packed batch stays what it is.
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
    """The part of a packed line that a rank holds: n of N tokens, and t of the T that are trained.

    `runs` are those of the whole line, cut at the borders of the pieces, and `local_runs` are the
    places of those that lie here, in their order. `local_T` are the trained tokens that are
    predicted here, `from_t` the places in n that predict them.
    """

    ids_n: Tensor
    position_n: Tensor
    runs: Sequence[TokenRun]
    local_runs: Sequence[int]
    local_T: Tensor
    from_t: Tensor
    group: ProcessGroup

    def all_gather(self, local: Tensor) -> Tensor:
        """Gather the whole line of what lies on the ranks: [..., n, D] gives [..., N, D]."""
        count = self.group.size()
        early_late: list[tuple[Tensor, Tensor]] = [
            chunk.chunk(2, -2) for chunk in _AllGather.apply(local, self.group).unbind(0)
        ]
        early = [early_late[rank][0] for rank in range(count)]
        late = [early_late[rank][1] for rank in reversed(range(count))]
        return torch.cat([*early, *late], -2)

    def all_gather_tokens(self, values_t: Tensor, count: int) -> Tensor:
        """Join the values of all T trained tokens from those that were computed here: [t, ...] to
        [T, ...]."""
        if self.group.size() == 1:
            return values_t
        values_T: Tensor = _AllGatherTokens.apply(
            values_t, self.local_T.to(values_t.device), count, self.group
        )
        return values_T


def shard_batch(batch: PackedBatch, rank: int, group: ProcessGroup) -> ContextShard:
    """Return the part that a rank of a group holds of a packed batch; all of it where it is
    alone."""
    count = group.size()
    if count == 1:
        all_runs, local_T = range(len(batch.runs)), torch.arange(len(batch.ids_T))
        return ContextShard(
            batch.ids_N, batch.position_N, batch.runs, all_runs, local_T, batch.from_T, group
        )
    size = -(-len(batch.ids_N) // (2 * count))  # of a piece
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
    """Yield the runs that cross no multiple of `size`. A worked example: with a size of 4, the run
    from 2 to 9 becomes those from 2 to 4, 4 to 8 and 8 to 9, each of which continues the one before
    it."""
    last_pieces: list[int] = []  # the place of the last part of each run
    num_pieces = 0
    for run in runs:
        borders = range((run.start // size + 1) * size, run.end, size)
        parent = None if run.parent is None else last_pieces[run.parent]
        for start, end in pairwise([run.start, *borders, run.end]):
            yield TokenRun(start, end, parent)
            parent, num_pieces = num_pieces, num_pieces + 1
        last_pieces.append(num_pieces - 1)


class _AllGather(torch.autograd.Function):
    """A gather with gradients: [...] on each of C ranks gives [C, ...] on all of them. Gradients
    are added up in float32."""

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
    """Values [t, ...] at places of T on each rank, put together on all of them. Each rank then
    computes the same loss, so the gradient of what was computed here is taken from here."""

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
