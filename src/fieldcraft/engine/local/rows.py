"""The sessions of the local engine that have a cache, as columns of numbers.

A step touches hundreds of rows, so nothing here is an object per row.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldcraft.engine.local.blocks import BLOCK, Blocks, Ints
from fieldcraft.sampling import Sampling


class Tensors(Protocol):
    """The keys and values of all blocks."""

    def copy(self, sources: Ints, targets: Ints, counts: Ints) -> None: ...
    def clear(self, blocks: list[int]) -> None: ...


class Rows:
    """The rows of the cache: one entry per row in every column; a row is one session and the list
    of its blocks.

    Rows that begin alike share whole blocks. A block that is not full belongs to one row alone, for
    that row will write into it.
    """

    def __init__(self, rows: int) -> None:
        self.blocks = Blocks()
        # (source, target, count): first tokens of blocks that are still to be copied into others
        self.copies: list[tuple[int, int, int]] = []
        self.table = np.zeros((rows, 8), np.int64)  # blocks of a row, in the order of its tokens
        self.held = np.zeros(rows, np.int64)  # how many they are
        self.length = np.zeros(rows, np.int64)  # tokens known
        self.cached = np.zeros(rows, np.int64)  # tokens whose keys and values are in the cache
        self.turn_start = np.zeros(rows, np.int64)  # length when the running turn began
        self.turn_end = np.zeros(rows, np.int64)  # length at which it ends at the latest
        self.temperature = np.zeros(rows, np.float32)
        self.truncated = np.zeros(rows, bool)
        self.limits = np.zeros((3, rows), np.float32)  # top_k, top_p and min_p of a truncated row
        self.seed = np.zeros(rows, np.uint64)
        self.stop_set = np.zeros(rows, np.int64)
        self.active = np.zeros(rows, bool)
        self.owner: list[str | None] = [None] * rows
        self.of: dict[str, int] = {}  # the row of a session
        self._vacant = dict.fromkeys(range(rows))  # rows without a session
        self._parked: dict[int, None] = {}  # rows whose session waits, the longest waiting first

    # ---- which session has which row

    @property
    def claimable(self) -> bool:
        """Return whether a new session can have a row."""
        return bool(self._vacant or self._parked)

    def claim(self, session: str) -> tuple[int, bool]:
        """Claim a row for a new session. Returns it, and whether a parked session lost it."""
        taken = not self._vacant
        if taken:
            self.release(next(iter(self._parked)))
        row = next(iter(self._vacant))
        del self._vacant[row]
        self.owner[row], self.of[session] = session, row
        return row, taken

    def release(self, row: int) -> None:
        """End the session of a row. What its blocks hold stays known until they are taken."""
        owner = self.owner[row]
        assert owner is not None
        del self.of[owner]
        self.owner[row] = None
        self.active[row] = False
        self._parked.pop(row, None)
        self._vacant[row] = None
        self.blocks.drop(self.table[row, : self.held[row]])
        self.held[row] = self.cached[row] = self.length[row] = 0

    def sample_as(self, row: int, sampling: Sampling) -> None:
        """Set what the running turn of a row is sampled from, and its seed."""
        cut = sampling.truncation
        self.temperature[row] = sampling.temperature
        self.truncated[row] = bool(cut) and sampling.temperature > 0
        self.limits[:, row] = cut.top_k, cut.top_p, cut.min_p
        self.seed[row] = sampling.seed % 2**64

    def park(self, row: int) -> None:
        """Record that the turn of a row has ended; what it has computed can be found by others."""
        self.active[row] = False
        self._parked[row] = None
        done = int(self.cached[row])
        self.blocks.remember(self.read(row, 0, done), self.table[row, : self.held[row]].tolist())

    def spoil(self, row: int) -> None:
        """End the session of a row whose numbers are of no use to others."""
        self.blocks.spoil(self.table[row, : self.held[row]].tolist())
        self.release(row)

    # ---- what they hold

    def read(self, row: int, start: int, end: int) -> Ints:
        """Return the tokens of a row."""
        return self._read(self.blocks.tokens, row, start, end)

    def read_logprobs(self, row: int, start: int, end: int) -> NDArray[np.float32]:
        """Return the log-probabilities of sampled tokens of a row."""
        return self._read(self.blocks.logprobs, row, start, end)

    def _read(self, column: NDArray[Any], row: int, start: int, end: int) -> NDArray[Any]:
        first = start // BLOCK
        blocks = self.table[row, first : -(-end // BLOCK)]
        return column[blocks].reshape(-1)[start - first * BLOCK : end - first * BLOCK]

    def resume(self, row: int, ids: Ints) -> None:
        """Bring back the session of a row: what `ids` begins with is kept, all but the last token,
        which must be computed in any case."""
        self._parked.pop(row, None)
        width = min(int(self.cached[row]), len(ids) - 1)
        different = np.append(self.read(row, 0, width) != ids[:width], True)
        kept = int(different.argmax())
        self._lay_out(row, ids, self.table[row, : -(-kept // BLOCK)], kept)

    def start(self, row: int, ids: Ints, blocks: Ints, kept: int) -> None:
        """Begin a new session, whose first `kept` tokens are in `blocks`."""
        self._lay_out(row, ids, blocks[: -(-kept // BLOCK)], kept)
        self.blocks.remember(ids, self.table[row, : self.held[row]].tolist())

    def _lay_out(self, row: int, ids: Ints, begin: Ints, kept: int) -> None:
        """Give a row the blocks for `ids`; `begin` holds the first `kept` of them."""
        blocks, (whole, rest) = self.blocks, divmod(kept, BLOCK)
        begin = begin.copy()
        blocks.hold(begin)
        blocks.drop(self.table[row, : self.held[row]])
        mine = len(begin)
        if rest and blocks.users[begin[-1]] > 1:  # others need it, and this row will write into it
            mine -= 1
        elif rest:
            blocks.rewrite(int(begin[-1]), rest)
        taken = blocks.take(-(-len(ids) // BLOCK) - mine)
        if mine < len(begin):
            blocks.drop(begin[mine:])
            self.copies.append((int(begin[mine]), int(taken[0]), rest))
        self.held[row] = mine + len(taken)
        self._widen(int(self.held[row]))
        self.table[row, : self.held[row]] = np.concatenate([begin[:mine], taken])
        own = self.table[row, whole : self.held[row]]
        positions = np.arange(whole * BLOCK, len(ids))
        blocks.tokens[own[positions // BLOCK - whole], positions % BLOCK] = ids[whole * BLOCK :]
        self.cached[row] = kept
        self.length[row] = self.turn_start[row] = len(ids)

    def _widen(self, width: int) -> None:
        more = width - self.table.shape[1]
        if more > 0:
            self.table = np.pad(self.table, [(0, 0), (0, max(more, self.table.shape[1]))])

    def advance(self, rows: Ints, counts: Ints) -> None:
        """Record that the next `counts` tokens of `rows` have been computed."""
        index, offset = spread(counts)
        position = self.cached[rows][index] + offset
        blocks = self.table[rows[index], position // BLOCK]
        self.blocks.computed[blocks] = position % BLOCK + 1  # the last of a block counts
        self.cached[rows] += counts

    def add(self, rows: Ints, ids: Ints, logprobs: NDArray[Any]) -> None:
        """Append a sampled token to each of `rows`."""
        place, offset = divmod(self.length[rows], BLOCK)
        full = place == self.held[rows]
        if full.any():
            self._widen(int(place.max()) + 1)
            self.table[rows[full], place[full]] = self.blocks.take(int(full.sum()))
            self.held[rows[full]] += 1
        blocks = self.table[rows, place]
        self.blocks.tokens[blocks, offset] = ids
        self.blocks.logprobs[blocks, offset] = logprobs
        self.length[rows] += 1

    def copy_in(self, cache: Tensors) -> None:
        """Copy what new rows take over, and overwrite what nobody may meet."""
        if self.copies:
            sources, targets, counts = np.array(self.copies).T
            cache.copy(sources, targets, counts)
            self.copies = []
        if self.blocks.unclean:
            cache.clear(self.blocks.unclean)
            self.blocks.cleaned()

    def exchange(self, a: Ints, b: Ints) -> None:
        """Swap the places of blocks `a[i]` and `b[i]`."""
        self.table = self.blocks.exchange(a, b)[self.table]


def spread(counts: Ints) -> tuple[Ints, Ints]:
    """Return, for runs of so many items, the run of each item, and its place within the run."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
