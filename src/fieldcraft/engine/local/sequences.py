"""Sessions of the local engine that have a cache, as columns of arrays.

A step touches hundreds of rows, so there is no object per row.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldcraft.engine.local.block_allocator import BLOCK_TOKENS, BlockAllocator, IntArray
from fieldcraft.sampling import SamplingParams


class BlockStorage(Protocol):
    """Storage of the keys and values of all blocks."""

    def copy(self, sources: IntArray, targets: IntArray, counts: IntArray) -> None: ...
    def clear(self, blocks: list[int]) -> None: ...


class SequenceTable:
    """Table of cached sequences: one row per session, with the list of its blocks, and one entry
    per row in every column.

    Rows with a common prefix share full blocks. A partial block belongs to a single row, because
    that row will write to it.
    """

    def __init__(self, rows: int) -> None:
        self.blocks = BlockAllocator()
        # (source, target, count): leading tokens of blocks that are still to be copied to others
        self.pending_copies: list[tuple[int, int, int]] = []
        self.block_table = np.zeros((rows, 8), np.int64)  # blocks of a row, in token order
        self.num_blocks = np.zeros(rows, np.int64)  # number of blocks of a row
        self.length = np.zeros(rows, np.int64)  # tokens of a row
        self.num_cached = np.zeros(rows, np.int64)  # tokens whose keys and values are in the cache
        self.turn_start = np.zeros(rows, np.int64)  # length at the start of the current turn
        self.turn_end = np.zeros(rows, np.int64)  # maximum length of the current turn
        self.temperature = np.zeros(rows, np.float32)
        self.is_truncated = np.zeros(rows, bool)
        self.limits = np.zeros((3, rows), np.float32)  # top_k, top_p and min_p of a truncated row
        self.seed = np.zeros(rows, np.uint64)
        self.stop_set = np.zeros(rows, np.int64)
        self.is_active = np.zeros(rows, bool)
        self.owner: list[str | None] = [None] * rows
        self.row_by_session: dict[str, int] = {}  # row of each session
        self._free_rows = dict.fromkeys(range(rows))  # rows without a session
        self._idle_rows: dict[int, None] = {}  # rows of idle sessions, longest idle first

    # ---- assignment of rows to sessions

    @property
    def has_room(self) -> bool:
        """Return whether a row is available for a new session."""
        return bool(self._free_rows or self._idle_rows)

    def acquire(self, session: str) -> tuple[int, bool]:
        """Assign a row to a new session. Returns it, and whether an idle session was evicted."""
        evicted = not self._free_rows
        if evicted:
            self.release(next(iter(self._idle_rows)))
        row = next(iter(self._free_rows))
        del self._free_rows[row]
        self.owner[row], self.row_by_session[session] = session, row
        return row, evicted

    def release(self, row: int) -> None:
        """End the session of a row. Its blocks stay in the prefix index until they are reused."""
        owner = self.owner[row]
        assert owner is not None
        del self.row_by_session[owner]
        self.owner[row] = None
        self.is_active[row] = False
        self._idle_rows.pop(row, None)
        self._free_rows[row] = None
        self.blocks.release(self.block_table[row, : self.num_blocks[row]])
        self.num_blocks[row] = self.num_cached[row] = self.length[row] = 0

    def set_sampling(self, row: int, sampling: SamplingParams) -> None:
        """Set the temperature, truncation and seed of a row's current turn."""
        truncation = sampling.truncation
        self.temperature[row] = sampling.temperature
        self.is_truncated[row] = bool(truncation) and sampling.temperature > 0
        self.limits[:, row] = truncation.top_k, truncation.top_p, truncation.min_p
        self.seed[row] = sampling.seed % 2**64

    def finish_turn(self, row: int) -> None:
        """Record that the turn of a row has ended, and index its computed prefix for other rows."""
        self.is_active[row] = False
        self._idle_rows[row] = None
        num_cached = int(self.num_cached[row])
        self.blocks.register_prefix(
            self.read_tokens(row, 0, num_cached),
            self.block_table[row, : self.num_blocks[row]].tolist(),
        )

    def invalidate(self, row: int) -> None:
        """End the session of a row whose values are invalid, so that no other row reuses them."""
        self.blocks.invalidate(self.block_table[row, : self.num_blocks[row]].tolist())
        self.release(row)

    # ---- contents

    def read_tokens(self, row: int, start: int, end: int) -> IntArray:
        """Return the tokens of a row."""
        return self._read_column(self.blocks.tokens, row, start, end)

    def read_logprobs(self, row: int, start: int, end: int) -> NDArray[np.float32]:
        """Return the log-probabilities of sampled tokens of a row."""
        return self._read_column(self.blocks.logprobs, row, start, end)

    def _read_column(self, column: NDArray[Any], row: int, start: int, end: int) -> NDArray[Any]:
        first = start // BLOCK_TOKENS
        blocks = self.block_table[row, first : -(-end // BLOCK_TOKENS)]
        return column[blocks].reshape(-1)[start - first * BLOCK_TOKENS : end - first * BLOCK_TOKENS]

    def resume(self, row: int, ids: IntArray) -> None:
        """Resume the session of a row. The cached prefix of `ids` is kept, except the last token,
        which must always be computed."""
        self._idle_rows.pop(row, None)
        width = min(int(self.num_cached[row]), len(ids) - 1)
        different = np.append(self.read_tokens(row, 0, width) != ids[:width], True)
        num_reused = int(different.argmax())
        self._assign_blocks(
            row, ids, self.block_table[row, : -(-num_reused // BLOCK_TOKENS)], num_reused
        )

    def start(self, row: int, ids: IntArray, blocks: IntArray, num_cached: int) -> None:
        """Start a new session, whose first `num_cached` tokens are in `blocks`."""
        self._assign_blocks(row, ids, blocks[: -(-num_cached // BLOCK_TOKENS)], num_cached)
        self.blocks.register_prefix(ids, self.block_table[row, : self.num_blocks[row]].tolist())

    def _assign_blocks(
        self, row: int, ids: IntArray, prefix_blocks: IntArray, num_cached: int
    ) -> None:
        """Assign a row the blocks for `ids`; `prefix_blocks` contain the first `num_cached`
        tokens."""
        blocks, (full_blocks, partial_tokens) = self.blocks, divmod(num_cached, BLOCK_TOKENS)
        prefix_blocks = prefix_blocks.copy()
        blocks.retain(prefix_blocks)
        blocks.release(self.block_table[row, : self.num_blocks[row]])
        num_reused = len(prefix_blocks)
        if (
            partial_tokens and blocks.ref_counts[prefix_blocks[-1]] > 1
        ):  # shared, but this row will write to it
            num_reused -= 1
        elif partial_tokens:
            blocks.truncate(int(prefix_blocks[-1]), partial_tokens)
        new_blocks = blocks.allocate(-(-len(ids) // BLOCK_TOKENS) - num_reused)
        if num_reused < len(prefix_blocks):
            blocks.release(prefix_blocks[num_reused:])
            self.pending_copies.append(
                (int(prefix_blocks[num_reused]), int(new_blocks[0]), partial_tokens)
            )
        self.num_blocks[row] = num_reused + len(new_blocks)
        self._grow_block_table(int(self.num_blocks[row]))
        self.block_table[row, : self.num_blocks[row]] = np.concatenate(
            [prefix_blocks[:num_reused], new_blocks]
        )
        tail_blocks = self.block_table[row, full_blocks : self.num_blocks[row]]
        positions = np.arange(full_blocks * BLOCK_TOKENS, len(ids))
        blocks.tokens[
            tail_blocks[positions // BLOCK_TOKENS - full_blocks], positions % BLOCK_TOKENS
        ] = ids[full_blocks * BLOCK_TOKENS :]
        self.num_cached[row] = num_cached
        self.length[row] = self.turn_start[row] = len(ids)

    def _grow_block_table(self, width: int) -> None:
        extra_columns = width - self.block_table.shape[1]
        if extra_columns > 0:
            self.block_table = np.pad(
                self.block_table, [(0, 0), (0, max(extra_columns, self.block_table.shape[1]))]
            )

    def advance(self, rows: IntArray, counts: IntArray) -> None:
        """Record that the next `counts` tokens of `rows` have been computed."""
        index, offset = expand_runs(counts)
        position = self.num_cached[rows][index] + offset
        blocks = self.block_table[rows[index], position // BLOCK_TOKENS]
        self.blocks.num_computed[blocks] = position % BLOCK_TOKENS + 1  # the last of a block wins
        self.num_cached[rows] += counts

    def append(self, rows: IntArray, ids: IntArray, logprobs: NDArray[Any]) -> None:
        """Append a sampled token to each of `rows`."""
        block_index, offset = divmod(self.length[rows], BLOCK_TOKENS)
        is_full = block_index == self.num_blocks[rows]
        if is_full.any():
            self._grow_block_table(int(block_index.max()) + 1)
            self.block_table[rows[is_full], block_index[is_full]] = self.blocks.allocate(
                int(is_full.sum())
            )
            self.num_blocks[rows[is_full]] += 1
        blocks = self.block_table[rows, block_index]
        self.blocks.tokens[blocks, offset] = ids
        self.blocks.logprobs[blocks, offset] = logprobs
        self.length[rows] += 1

    def sync_storage(self, storage: BlockStorage) -> None:
        """Copy the partial blocks that new rows reuse, and overwrite dirty blocks."""
        if self.pending_copies:
            sources, targets, counts = np.array(self.pending_copies).T
            storage.copy(sources, targets, counts)
            self.pending_copies = []
        if self.blocks.dirty_blocks:
            storage.clear(self.blocks.dirty_blocks)
            self.blocks.mark_clean()

    def swap_blocks(self, a: IntArray, b: IntArray) -> None:
        """Swap the indices of blocks `a[i]` and `b[i]`."""
        self.block_table = self.blocks.swap(a, b)[self.block_table]


def expand_runs(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Return, for runs of `counts[i]` items, the run index of each item and its offset in the
    run."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
