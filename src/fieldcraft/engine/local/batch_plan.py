"""Plan of one step of the local engine: cache slots of tokens, and blocks that each row reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fieldcraft.engine.local.block_allocator import BLOCK_TOKENS, IntArray
from fieldcraft.engine.local.sequences import SequenceTable, expand_runs


@dataclass(frozen=True, slots=True)
class PrefillGroup:
    """Rows that attend together, padded to the same number of queries and blocks. Their blocks are
    copied first, a cost amortised over many queries."""

    blocks: torch.Tensor  # [R, L / B]
    token_slice: slice  # positions in the packed sequence
    padded_index: tuple[torch.Tensor, torch.Tensor]  # [t], [t] indices into the padded [R, W]
    query_positions: torch.Tensor  # [R, W] token positions
    has_no_context: bool  # for all rows, so that without a window no mask is needed
    _masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None) -> torch.Tensor:
        """Return the bool mask [R, W, L], True where a query sees a position: all up to its own, or
        the last `window` of them."""
        if window not in self._masks:
            keys = torch.arange(
                self.blocks.shape[1] * BLOCK_TOKENS, device=self.query_positions.device
            )
            query_column = self.query_positions[..., None]
            visible = keys <= query_column
            self._masks[window] = (
                visible if window is None else visible & (keys > query_column - window)
            )
        return self._masks[window]


@dataclass(frozen=True, slots=True)
class BlockRead:
    """Blocks that are read once, each for `width` decoding rows."""

    blocks: slice | torch.Tensor  # P of them
    width: int
    rows: torch.Tensor  # [P * width] indices of the rows in the packed sequence, R for none
    block_starts: (
        torch.Tensor
    )  # [P * width] start of a block relative to the position of its reader's token
    _hidden_masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def hidden_mask(self, window: int | None) -> torch.Tensor | None:
        """Return a bool mask [P * width, 1, 1, B], True for positions without a token yet or
        outside the window. None if nothing is hidden."""
        if window is None and self.width > 1:
            return None  # blocks that several rows read are full
        if window not in self._hidden_masks:
            token_positions = self.block_starts[:, None] + torch.arange(
                BLOCK_TOKENS, device=self.block_starts.device
            )
            hidden = token_positions > 0
            if window is not None:
                hidden = hidden | (token_positions <= -window)
            self._hidden_masks[window] = hidden[:, None, None]
        return self._hidden_masks[window]


@dataclass(slots=True)
class BatchPlan:
    """Layout of the tokens of one step."""

    ids: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    blocks: torch.Tensor  # [T]
    offsets: torch.Tensor  # [T] within the blocks
    num_decoding: int  # the leading tokens, one per row, attend by `block_reads`
    block_reads: tuple[BlockRead, ...]
    prefill_groups: tuple[PrefillGroup, ...]
    _slots: dict[int, torch.Tensor] = field(default_factory=dict)

    def slots(self, heads: int) -> torch.Tensor:
        """Return the indices [T * heads] of keys in a layer that is viewed as rows of one head's
        values."""
        if heads not in self._slots:
            lines = self.blocks[:, None] * heads + torch.arange(heads, device=self.blocks.device)
            self._slots[heads] = (lines * BLOCK_TOKENS + self.offsets[:, None]).flatten()
        return self._slots[heads]


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device without synchronising with it."""
    return torch.from_numpy(array).to(device, non_blocking=True)


def order_rows(starts: IntArray, counts: IntArray) -> IntArray:
    """Return the order of rows in the packed sequence: decoding rows first, then the others by
    group."""
    widths, lengths = _size_classes(starts, counts)
    return np.lexsort([lengths, widths])


def _size_classes(starts: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Return the width class and the length class of each row. Groups are padded, so within a class
    each size differs by at most a factor of four. Rows without context form separate classes,
    because they need no mask."""
    blocks = -(-(starts + counts) // BLOCK_TOKENS)
    widths, lengths = (np.ceil(np.log2(sizes) / 2).astype(np.int64) for sizes in (counts, blocks))
    return widths, 2 * lengths + (starts > 0)


def plan_batch(
    table: SequenceTable,
    rows: IntArray,
    starts: IntArray,
    counts: IntArray,
    device: torch.device,
    by_block: bool,
) -> BatchPlan:
    """Plan a step in which `rows[i]`, in the order of `order_rows`, computes the `counts[i]` tokens
    after its `starts[i]` cached ones. With `by_block`, decoding rows read their blocks in place."""
    index, offset = expand_runs(counts)
    positions = starts[index] + offset
    blocks, offsets = (
        table.block_table[rows[index], positions // BLOCK_TOKENS],
        positions % BLOCK_TOKENS,
    )
    packed = np.stack([table.blocks.tokens[blocks, offsets], positions, blocks, offsets])
    ids_T, positions_T, blocks_T, offsets_T = to_device(packed, device)
    num_decoding = int((counts == 1).sum()) if by_block else 0
    block_reads = (
        _plan_block_reads(table, rows[:num_decoding], starts[:num_decoding], device)
        if num_decoding
        else ()
    )
    prefill_groups = []
    widths, lengths = _size_classes(starts, counts)
    changes = np.append(np.diff(widths) | np.diff(lengths), 1)
    first = num_decoding
    for last in np.flatnonzero(changes) + 1:
        if last > first:
            chosen = slice(first, int(last))
            prefill_groups.append(_plan_prefill_group(table, rows, starts, counts, chosen, device))
            first = int(last)
    return BatchPlan(
        ids_T, positions_T, blocks_T, offsets_T, num_decoding, block_reads, tuple(prefill_groups)
    )


def _plan_prefill_group(
    table: SequenceTable,
    rows: IntArray,
    starts: IntArray,
    counts: IntArray,
    chosen: slice,
    device: torch.device,
) -> PrefillGroup:
    first_token = int(counts[: chosen.start].sum())
    rows, starts, counts = rows[chosen], starts[chosen], counts[chosen]
    row_t, column_t = to_device(np.stack(expand_runs(counts)), device)
    block_counts = -(-(starts + counts) // BLOCK_TOKENS)
    ordinal = np.arange(block_counts.max())
    # Padding repeats a row's first block, because masked values must be finite.
    blocks = table.block_table[rows[:, None], np.where(ordinal < block_counts[:, None], ordinal, 0)]
    query_positions = to_device(starts[:, None] + np.arange(counts.max()), device)
    tokens = slice(first_token, first_token + int(counts.sum()))
    has_no_context = not starts.any()
    return PrefillGroup(
        to_device(blocks, device), tokens, (row_t, column_t), query_positions, has_no_context
    )


def list_block_reads(
    table: SequenceTable, rows: IntArray, starts: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return, for decoding rows, the blocks that they read, the reader of each, and its start
    relative to the position of the reader's new token."""
    reader, ordinal = expand_runs(starts // BLOCK_TOKENS + 1)
    return table.block_table[rows[reader], ordinal], reader, ordinal * BLOCK_TOKENS - starts[reader]


def _plan_block_reads(
    table: SequenceTable, rows: IntArray, starts: IntArray, device: torch.device
) -> tuple[BlockRead, ...]:
    blocks, reader, block_starts = list_block_reads(table, rows, starts)
    readers = np.bincount(blocks)
    is_single = readers[blocks] == 1
    # The contiguous range from the first block to the last one with a single reader.
    count = int(blocks[is_single].max()) + 1
    owners, read_starts = np.full(count, len(rows)), np.zeros(count, np.int64)
    owners[blocks[is_single]], read_starts[blocks[is_single]] = (
        reader[is_single],
        block_starts[is_single],
    )
    owners_P, read_starts_P = to_device(np.stack([owners, read_starts]), device)
    shared_reads = _plan_shared_reads(
        blocks[~is_single], reader[~is_single], block_starts[~is_single], readers, len(rows), device
    )
    return BlockRead(slice(count), 1, owners_P, read_starts_P), *shared_reads


def _plan_shared_reads(
    blocks: IntArray,
    reader: IntArray,
    block_starts: IntArray,
    readers: IntArray,
    padding_row: int,
    device: torch.device,
) -> Iterator[BlockRead]:
    """Yield the reads of blocks that several rows share, which are full."""
    widths = np.ceil(np.log2(readers[blocks]) / 2).astype(np.int64)
    for width in np.unique(widths):
        members = np.flatnonzero(widths == width)
        members = members[np.argsort(blocks[members], kind="stable")]
        unique_blocks, read_index, counts = np.unique(
            blocks[members], return_inverse=True, return_counts=True
        )
        rows = np.full((len(unique_blocks), int(counts.max())), padding_row)
        read_starts = np.zeros_like(rows)
        lane = expand_runs(counts)[1]
        rows[read_index, lane], read_starts[read_index, lane] = (
            reader[members],
            block_starts[members],
        )
        rows_PW, read_starts_PW = to_device(np.stack([rows.ravel(), read_starts.ravel()]), device)
        yield BlockRead(to_device(unique_blocks, device), rows.shape[1], rows_PW, read_starts_PW)
