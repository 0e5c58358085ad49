"""What one step of the local engine computes: which token belongs where, and who reads what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fieldcraft.engine.local.blocks import BLOCK, Ints
from fieldcraft.engine.local.rows import Rows, spread


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that attend together, padded to the same number of queries and of blocks. Their blocks
    are copied first, a cost that their many queries share."""

    blocks: torch.Tensor  # [R, L / B]
    tokens: slice  # places in the packed line
    at: tuple[torch.Tensor, torch.Tensor]  # [t], [t] their places in the padded [R, W]
    shape: tuple[int, int, int]  # R, W, L
    mask: torch.Tensor | None  # [R, W, L] bool, True where a query sees a position; None: causal


@dataclass(frozen=True, slots=True)
class Reading:
    """Blocks that are read once, each for `width` rows that decode."""

    blocks: slice | torch.Tensor  # P of them
    width: int
    rows: torch.Tensor  # [P * width] places of the rows in the packed line, R where there is none
    hidden: torch.Tensor | None  # [P, 1, 1, B] bool, True where no token is yet


@dataclass(slots=True)
class Plan:
    """Where the tokens of one step belong."""

    ids: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    blocks: torch.Tensor  # [T]
    offsets: torch.Tensor  # [T] within their blocks
    decoding: int  # the first tokens, one per row, attend by `readings`
    readings: tuple[Reading, ...]
    groups: tuple[Group, ...]
    _slots: dict[int, torch.Tensor] = field(default_factory=dict)

    def slots(self, heads: int) -> torch.Tensor:
        """[T * heads] where keys go in a layer that is seen as lines of one head's numbers."""
        if heads not in self._slots:
            lines = self.blocks[:, None] * heads + torch.arange(heads, device=self.blocks.device)
            self._slots[heads] = (lines * BLOCK + self.offsets[:, None]).flatten()
        return self._slots[heads]


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy without waiting for what the device is doing."""
    return torch.from_numpy(array).to(device, non_blocking=True)


def order(starts: Ints, counts: Ints) -> Ints:
    """The order in which rows stand in the packed line: those that decode, then by groups."""
    widths, lengths = _classes(starts, counts)
    return np.lexsort([lengths, widths])


def _classes(starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Groups are padded: their widths, and their lengths, differ at most by a factor of four. Rows
    that begin are apart from those that go on: they need no mask."""
    blocks = -(-(starts + counts) // BLOCK)
    widths, lengths = (np.ceil(np.log2(sizes) / 2).astype(np.int64) for sizes in (counts, blocks))
    return widths, 2 * lengths + (starts > 0)


def make_plan(
    table: Rows, rows: Ints, starts: Ints, counts: Ints, device: torch.device, by_block: bool
) -> Plan:
    """Lay out a step in which `rows[i]`, in the order of `order`, adds the `counts[i]` tokens that
    stand after its `starts[i]` cached ones. `by_block`: rows that decode read their blocks where
    they lie."""
    index, offset = spread(counts)
    positions = starts[index] + offset
    blocks, offsets = table.table[rows[index], positions // BLOCK], positions % BLOCK
    packed = np.stack([table.blocks.tokens[blocks, offsets], positions, blocks, offsets])
    ids_T, positions_T, blocks_T, offsets_T = to_device(packed, device)
    decoding = int((counts == 1).sum()) if by_block else 0
    readings = _readings(table, rows[:decoding], starts[:decoding], device) if decoding else ()
    groups = []
    widths, lengths = _classes(starts, counts)
    changes = np.append(np.diff(widths) | np.diff(lengths), 1)
    first = decoding
    for last in np.flatnonzero(changes) + 1:
        if last > first:
            chosen = slice(first, int(last))
            groups.append(_group(table, rows, starts, counts, chosen, device))
            first = int(last)
    return Plan(ids_T, positions_T, blocks_T, offsets_T, decoding, readings, tuple(groups))


def _group(
    table: Rows, rows: Ints, starts: Ints, counts: Ints, chosen: slice, device: torch.device
) -> Group:
    before = int(counts[: chosen.start].sum())
    rows, starts, counts = rows[chosen], starts[chosen], counts[chosen]
    row_t, column_t = to_device(np.stack(spread(counts)), device)
    wanted = -(-(starts + counts) // BLOCK)
    ordinal = np.arange(wanted.max())
    # Beyond its own blocks, a row reads its first one again: what is masked must be finite.
    blocks = table.table[rows[:, None], np.where(ordinal < wanted[:, None], ordinal, 0)]
    tokens = slice(before, before + int(counts.sum()))
    shape = len(rows), int(counts.max()), len(ordinal) * BLOCK
    mask = _mask(starts, shape, device) if starts.any() else None
    return Group(to_device(blocks, device), tokens, (row_t, column_t), shape, mask)


def _mask(starts: Ints, shape: tuple[int, int, int], device: torch.device) -> torch.Tensor:
    queries = to_device(starts[:, None] + np.arange(shape[1]), device)
    return torch.arange(shape[2], device=device) <= queries[..., None]


def blocks_read(table: Rows, rows: Ints, starts: Ints) -> tuple[Ints, Ints, Ints]:
    """For rows that decode: the blocks that they read, who reads each, and how many tokens."""
    reader, ordinal = spread(starts // BLOCK + 1)
    length = np.minimum(starts[reader] + 1 - ordinal * BLOCK, BLOCK)
    return table.table[rows[reader], ordinal], reader, length


def _readings(table: Rows, rows: Ints, starts: Ints, device: torch.device) -> tuple[Reading, ...]:
    blocks, reader, length = blocks_read(table, rows, starts)
    readers = np.bincount(blocks)
    alone = readers[blocks] == 1
    # From the first block to the last one that one row reads, with whatever lies between them.
    count = int(blocks[alone].max()) + 1
    owners, filled = np.full(count, len(rows)), np.full(count, BLOCK)
    owners[blocks[alone]], filled[blocks[alone]] = reader[alone], length[alone]
    owners_P, filled_P = to_device(np.stack([owners, filled]), device)
    hidden = torch.arange(BLOCK, device=device) >= filled_P[:, None, None, None]
    shared = _shared(blocks[~alone], reader[~alone], readers, len(rows), device)
    return Reading(slice(count), 1, owners_P, hidden), *shared


def _shared(
    blocks: Ints, reader: Ints, readers: Ints, nobody: int, device: torch.device
) -> Iterator[Reading]:
    """Blocks that several rows read, which are full."""
    widths = np.ceil(np.log2(readers[blocks]) / 2).astype(np.int64)
    for width in np.unique(widths):
        mine = np.flatnonzero(widths == width)
        mine = mine[np.argsort(blocks[mine], kind="stable")]
        found, place, counts = np.unique(blocks[mine], return_inverse=True, return_counts=True)
        rows = np.full((len(found), int(counts.max())), nobody)
        rows[place, spread(counts)[1]] = reader[mine]
        yield Reading(
            to_device(found, device), rows.shape[1], to_device(rows.ravel(), device), None
        )
