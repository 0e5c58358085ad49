"""Blocks of the cache: tokens, reference counts, and an index of prefixes.

Metadata only; `kv_cache.py` stores the keys and values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

BLOCK_TOKENS = 32  # tokens; smaller ones cost speed, larger ones memory (measured)

IntArray = NDArray[np.int64]
PrefixKey = tuple[int, bytes]


class BlockAllocator:
    """Allocator of blocks of `BLOCK_TOKENS` tokens, which rows with a common prefix share.

    Prefixes are indexed in a dictionary. Its key combines the tokens of a block with the serial
    number of the preceding block, so a key identifies a whole prefix and is compared exactly. A
    block gets a new serial number when its tokens change, so that the old number cannot match them.

    A block without users is free. It stays in the index until it is reused; the block that has been
    free longest is reused first.
    """

    def __init__(self) -> None:
        self.tokens = np.zeros((0, BLOCK_TOKENS), np.int64)
        self.logprobs = np.zeros((0, BLOCK_TOKENS), np.float32)  # of sampled tokens
        self.ref_counts = np.zeros(0, np.int64)  # rows that use the block
        self.num_computed = np.zeros(0, np.int64)  # tokens whose keys and values are in the cache
        self.dirty_blocks: list[int] = []  # free after their keys and values are overwritten
        self._serial_numbers = np.zeros(0, np.int64)
        self._serial_counter = itertools.count(1)  # 0 precedes the first block
        self._prefix_blocks: dict[PrefixKey, int] = {}
        self._block_keys: list[list[PrefixKey]] = []  # index keys of each block
        self._free_blocks: dict[int, None] = {}  # longest free first
        self._invalid_blocks: set[int] = set()

    @property
    def num_blocks(self) -> int:
        return len(self.ref_counts)

    # ---- users

    def allocate(self, count: int) -> IntArray:
        """Allocate `count` blocks with one user each; the pool grows if too few are free."""
        if count > len(self._free_blocks):
            self._grow(max(count - len(self._free_blocks), self.num_blocks // 4, 16))
        blocks = np.array(list(itertools.islice(self._free_blocks, count)), np.int64)
        for block in blocks.tolist():
            del self._free_blocks[block]
            self.truncate(block, 0)
        self.ref_counts[blocks] = 1
        return blocks

    def retain(self, blocks: IntArray) -> None:
        """Add one user to each block."""
        for block in blocks[self.ref_counts[blocks] == 0].tolist():
            del self._free_blocks[block]
        self.ref_counts[blocks] += 1

    def release(self, blocks: IntArray) -> None:
        """Remove one user from each block, given in token order. Later blocks are reused before the
        blocks that they follow."""
        self.ref_counts[blocks] -= 1
        for block in blocks[self.ref_counts[blocks] == 0][::-1].tolist():
            if block in self._invalid_blocks:
                self._invalid_blocks.remove(block)
                self.truncate(block, 0)  # a row that shares it may have indexed it again
                self.dirty_blocks.append(block)
            else:
                self._unregister_prefixes(block, int(self.num_computed[block]))
                self._free_blocks[block] = None

    def invalidate(self, blocks: Iterable[int]) -> None:
        """Remove blocks with non-finite values from the index. They are to be overwritten after
        their last user releases them."""
        for block in blocks:
            self._unregister_prefixes(block, 0)
            self._invalid_blocks.add(block)

    def mark_clean(self) -> None:
        """Record that the dirty blocks have been overwritten."""
        self._free_blocks.update(dict.fromkeys(self.dirty_blocks))
        self.dirty_blocks = []

    def truncate(self, block: int, length: int) -> None:
        """Keep only the first tokens of a block."""
        if self.num_computed[block] > length or length == 0:
            self._serial_numbers[block] = next(self._serial_counter)
        self._unregister_prefixes(block, length)
        self.num_computed[block] = min(int(self.num_computed[block]), length)

    def _unregister_prefixes(self, block: int, max_tokens: int) -> None:
        """Remove the prefixes that end after the first `max_tokens` tokens of a block from the
        index."""
        remaining = []
        for key in self._block_keys[block]:
            if len(key[1]) <= 4 * max_tokens:
                remaining.append(key)
            else:
                del self._prefix_blocks[key]
        self._block_keys[block] = remaining

    def _grow(self, more: int) -> None:
        first = self.num_blocks
        for name in ("tokens", "logprobs", "ref_counts", "num_computed", "_serial_numbers"):
            column = getattr(self, name)
            setattr(self, name, np.pad(column, [(0, more), (0, 0)][: column.ndim]))
        self._block_keys += [[] for _ in range(more)]
        self._free_blocks.update(dict.fromkeys(range(first, first + more)))

    def swap(self, a: IntArray, b: IntArray) -> IntArray:
        """Swap the indices of blocks `a[i]` and `b[i]`, and return the new index of each block
        [count]."""
        new_index = np.arange(self.num_blocks)
        new_index[a], new_index[b] = b, a
        moved = np.concatenate([a, b])
        for column in (
            self.tokens,
            self.logprobs,
            self.ref_counts,
            self.num_computed,
            self._serial_numbers,
        ):
            column[new_index[moved]] = column[moved]
        for block, keys in [(int(new_index[block]), self._block_keys[block]) for block in moved]:
            self._block_keys[block] = keys
            self._prefix_blocks.update(dict.fromkeys(keys, block))
        self._invalid_blocks = {int(new_index[block]) for block in self._invalid_blocks}
        free = [block for block in moved.tolist() if block in self._free_blocks]
        for block in free:
            del self._free_blocks[block]
        self._free_blocks.update(dict.fromkeys(new_index[free].tolist()))
        return new_index

    # ---- prefixes

    def register_prefix(self, ids: IntArray, blocks: Iterable[int]) -> None:
        """Record that `blocks` contain `ids`, or will: index the prefix up to the end of each
        block, and the whole sequence."""
        data, parent_serial = ids.astype(np.int32).tobytes(), 0
        for start, block in zip(range(0, len(data), 4 * BLOCK_TOKENS), blocks, strict=False):
            key = parent_serial, data[start : start + 4 * BLOCK_TOKENS]
            if key not in self._prefix_blocks:
                self._prefix_blocks[key] = block
                self._block_keys[block].append(key)
            parent_serial = int(self._serial_numbers[self._prefix_blocks[key]])

    def match_prefix(self, ids: IntArray) -> tuple[IntArray, int]:
        """Return the blocks with the longest indexed prefix of `ids`, and its number of tokens.

        Costs one lookup per block of `ids`, and one per token of the last block.
        """
        data, parent_serial, num_matched, matched_blocks = (
            ids.astype(np.int32).tobytes(),
            0,
            0,
            list[int](),
        )
        for start in range(0, len(data), 4 * BLOCK_TOKENS):
            piece = data[start : start + 4 * BLOCK_TOKENS]
            for length in range(len(piece) // 4, 0, -1):
                block = self._prefix_blocks.get((parent_serial, piece[: 4 * length]))
                if block is not None:
                    break
            else:
                break
            matched_blocks.append(block)
            num_matched += length
            if length < BLOCK_TOKENS:
                break
            parent_serial = int(self._serial_numbers[block])
        return np.array(matched_blocks, np.int64), num_matched

    def count_computed(self, blocks: IntArray, num_matched: int) -> int:
        """Return how many of the `num_matched` tokens in `blocks` are already computed."""
        computed = self.num_computed[blocks]
        full_blocks = int(np.append(computed < BLOCK_TOKENS, True).argmax())
        return min(
            num_matched,
            full_blocks * BLOCK_TOKENS + int(computed[full_blocks : full_blocks + 1].sum()),
        )
