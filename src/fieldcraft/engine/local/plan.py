"""The plan of one step of the local engine: which token belongs where, and who reads what."""

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
    queries: torch.Tensor  # [R, W] their positions
    begin: bool  # all rows do, so that without a window they need no mask
    _masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None) -> torch.Tensor:
        """Return the mask [R, W, L] of bool, True where a query sees a position: up to its own, and
        with a window so many of them."""
        if window not in self._masks:
            keys = torch.arange(self.blocks.shape[1] * BLOCK, device=self.queries.device)
            asking = self.queries[..., None]
            seen = keys <= asking
            self._masks[window] = seen if window is None else seen & (keys > asking - window)
        return self._masks[window]


@dataclass(frozen=True, slots=True)
class Reading:
    """Blocks that are read once, each for `width` rows that decode."""

    blocks: slice | torch.Tensor  # P of them
    width: int
    rows: torch.Tensor  # [P * width] places of the rows in the packed line, R where there is none
    begins: torch.Tensor  # [P * width] where a block begins, from the place of its reader's token
    _hidden: dict[int | None, torch.Tensor | None] = field(default_factory=dict)

    def hidden(self, window: int | None) -> torch.Tensor | None:
        """Return a mask [P * width, 1, 1, B] of bool, True where no token is yet, or where it is
        out of the window. None where nothing is hidden."""
        if window not in self._hidden:
            self._hidden[window] = self._find_hidden(window)
        return self._hidden[window]

    def _find_hidden(self, window: int | None) -> torch.Tensor | None:
        if window is None and self.width > 1:
            return None  # blocks that several rows read are full
        places = self.begins[:, None] + torch.arange(BLOCK, device=self.begins.device)
        hidden = places > 0 if window is None else (places > 0) | (places <= -window)
        return hidden[:, None, None]


@dataclass(slots=True)
class Plan:
    """The places of the tokens of one step."""

    ids: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    blocks: torch.Tensor  # [T]
    offsets: torch.Tensor  # [T] within their blocks
    decoding: int  # the first tokens, one per row, attend by `readings`
    readings: tuple[Reading, ...]
    groups: tuple[Group, ...]
    _slots: dict[int, torch.Tensor] = field(default_factory=dict)

    def slots(self, heads: int) -> torch.Tensor:
        """Return the places [T * heads] of keys in a layer that is seen as lines of one head's
        numbers."""
        if heads not in self._slots:
            lines = self.blocks[:, None] * heads + torch.arange(heads, device=self.blocks.device)
            self._slots[heads] = (lines * BLOCK + self.offsets[:, None]).flatten()
        return self._slots[heads]


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device without waiting for what the device is doing."""
    return torch.from_numpy(array).to(device, non_blocking=True)


def order(starts: Ints, counts: Ints) -> Ints:
    """Return the order in which rows stand in the packed line: those that decode, then the others
    by groups."""
    widths, lengths = _classes(starts, counts)
    return np.lexsort([lengths, widths])


def _classes(starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return the class of the width and of the length of each row. Groups are padded, so within a
    class each differs at most by a factor of four. Rows that begin are apart from those that go on:
    they need no mask."""
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
    queries = to_device(starts[:, None] + np.arange(counts.max()), device)
    tokens = slice(before, before + int(counts.sum()))
    begin = not starts.any()
    return Group(to_device(blocks, device), tokens, (row_t, column_t), queries, begin)


def blocks_read(table: Rows, rows: Ints, starts: Ints) -> tuple[Ints, Ints, Ints]:
    """Return, for rows that decode, the blocks that they read, who reads each, and where it begins,
    counted from the place of its reader's new token."""
    reader, ordinal = spread(starts // BLOCK + 1)
    return table.table[rows[reader], ordinal], reader, ordinal * BLOCK - starts[reader]


def _readings(table: Rows, rows: Ints, starts: Ints, device: torch.device) -> tuple[Reading, ...]:
    blocks, reader, begins = blocks_read(table, rows, starts)
    readers = np.bincount(blocks)
    alone = readers[blocks] == 1
    # From the first block to the last one that one row reads, with whatever lies between them.
    count = int(blocks[alone].max()) + 1
    owners, places = np.full(count, len(rows)), np.zeros(count, np.int64)
    owners[blocks[alone]], places[blocks[alone]] = reader[alone], begins[alone]
    owners_P, places_P = to_device(np.stack([owners, places]), device)
    shared = _shared(blocks[~alone], reader[~alone], begins[~alone], readers, len(rows), device)
    return Reading(slice(count), 1, owners_P, places_P), *shared


def _shared(
    blocks: Ints, reader: Ints, begins: Ints, readers: Ints, nobody: int, device: torch.device
) -> Iterator[Reading]:
    """Yield the blocks that several rows read, which are full."""
    widths = np.ceil(np.log2(readers[blocks]) / 2).astype(np.int64)
    for width in np.unique(widths):
        mine = np.flatnonzero(widths == width)
        mine = mine[np.argsort(blocks[mine], kind="stable")]
        found, place, counts = np.unique(blocks[mine], return_inverse=True, return_counts=True)
        rows = np.full((len(found), int(counts.max())), nobody)
        places = np.zeros_like(rows)
        lane = spread(counts)[1]
        rows[place, lane], places[place, lane] = reader[mine], begins[mine]
        rows_PW, places_PW = to_device(np.stack([rows.ravel(), places.ravel()]), device)
        yield Reading(to_device(found, device), rows.shape[1], rows_PW, places_PW)
