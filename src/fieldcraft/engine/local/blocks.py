"""The blocks of the cache: the tokens of each one, its users, and the prefixes that are known.

Metadata only; `kv_cache.py` has the keys and values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

BLOCK = 32  # tokens; smaller ones cost speed, larger ones memory (measured)

Ints = NDArray[np.int64]
Key = tuple[int, bytes]


class Blocks:
    """Blocks of `BLOCK` tokens, shared by the rows that begin alike.

    Prefixes are found in a dictionary. Its key is what a block holds, together with the serial
    number of the block before it: so a key stands for a whole prefix, and is compared exactly. A
    block gets a new serial number when it gets other tokens, which nobody can find by the old one.

    A block without users is free. It stays known until it is taken, the longest free one first.
    """

    def __init__(self) -> None:
        self.tokens = np.zeros((0, BLOCK), np.int64)
        self.logprobs = np.zeros((0, BLOCK), np.float32)  # of sampled tokens
        self.users = np.zeros(0, np.int64)  # rows that hold the block
        self.computed = np.zeros(0, np.int64)  # tokens whose keys and values are in the cache
        self.unclean: list[int] = []  # free as soon as their keys and values are overwritten
        self._serial = np.zeros(0, np.int64)
        self._serials = itertools.count(1)  # 0 stands before the first block
        self._known: dict[Key, int] = {}
        self._keys: list[list[Key]] = []  # of every block
        self._free: dict[int, None] = {}  # the longest free first
        self._spoiled: set[int] = set()

    @property
    def count(self) -> int:
        return len(self.users)

    # ---- users

    def take(self, number: int) -> Ints:
        """Take so many blocks for one user each; there are more of them if too few are free."""
        if number > len(self._free):
            self._grow(max(number - len(self._free), self.count // 4, 16))
        blocks = np.array(list(itertools.islice(self._free, number)), np.int64)
        for block in blocks.tolist():
            del self._free[block]
            self.rewrite(block, 0)
        self.users[blocks] = 1
        return blocks

    def hold(self, blocks: Ints) -> None:
        """Add one user to each block."""
        for block in blocks[self.users[blocks] == 0].tolist():
            del self._free[block]
        self.users[blocks] += 1

    def drop(self, blocks: Ints) -> None:
        """Remove one user of each block, given in the order of their tokens. The last ones are
        taken again before those that they follow."""
        self.users[blocks] -= 1
        for block in blocks[self.users[blocks] == 0][::-1].tolist():
            if block in self._spoiled:
                self._spoiled.remove(block)
                self.unclean.append(block)
            else:
                self._forget(block, int(self.computed[block]))
                self._free[block] = None

    def spoil(self, blocks: Iterable[int]) -> None:
        """Hide blocks whose numbers are not finite: nobody finds them any more, and they are to be
        overwritten when their last user is gone."""
        for block in blocks:
            self._forget(block, 0)
            self._spoiled.add(block)

    def cleaned(self) -> None:
        """Record that the unclean blocks have been overwritten."""
        self._free.update(dict.fromkeys(self.unclean))
        self.unclean = []

    def rewrite(self, block: int, length: int) -> None:
        """Keep only the first tokens of a block."""
        if self.computed[block] > length or length == 0:
            self._serial[block] = next(self._serials)
        self._forget(block, length)
        self.computed[block] = min(int(self.computed[block]), length)

    def _forget(self, block: int, beyond: int) -> None:
        """Forget the prefixes that end after so many tokens of a block."""
        kept = []
        for key in self._keys[block]:
            if len(key[1]) <= 4 * beyond:
                kept.append(key)
            else:
                del self._known[key]
        self._keys[block] = kept

    def _grow(self, more: int) -> None:
        first = self.count
        for name in ("tokens", "logprobs", "users", "computed", "_serial"):
            column = getattr(self, name)
            setattr(self, name, np.pad(column, [(0, more), (0, 0)][: column.ndim]))
        self._keys += [[] for _ in range(more)]
        self._free.update(dict.fromkeys(range(first, first + more)))

    def exchange(self, a: Ints, b: Ints) -> Ints:
        """Swap the places of blocks `a[i]` and `b[i]`, and return the new place of each block
        [count]."""
        place = np.arange(self.count)
        place[a], place[b] = b, a
        moved = np.concatenate([a, b])
        for column in (self.tokens, self.logprobs, self.users, self.computed, self._serial):
            column[place[moved]] = column[moved]
        for block, keys in [(int(place[block]), self._keys[block]) for block in moved]:
            self._keys[block] = keys
            self._known.update(dict.fromkeys(keys, block))
        self._spoiled = {int(place[block]) for block in self._spoiled}
        free = [block for block in moved.tolist() if block in self._free]
        for block in free:
            del self._free[block]
        self._free.update(dict.fromkeys(place[free].tolist()))
        return place

    # ---- prefixes

    def remember(self, ids: Ints, blocks: Iterable[int]) -> None:
        """Record that `blocks` hold `ids`, or will: the prefix up to the end of each block can be
        found, and the whole."""
        data, before = ids.astype(np.int32).tobytes(), 0
        for start, block in zip(range(0, len(data), 4 * BLOCK), blocks, strict=False):
            key = before, data[start : start + 4 * BLOCK]
            if key not in self._known:
                self._known[key] = block
                self._keys[block].append(key)
            before = int(self._serial[self._known[key]])

    def find(self, ids: Ints) -> tuple[Ints, int]:
        """Return the blocks that hold what `ids` begins with, and the number of those tokens.

        Costs a look-up for every block of `ids`, and one for every token of the last one.
        """
        data, before, known, found = ids.astype(np.int32).tobytes(), 0, 0, list[int]()
        for start in range(0, len(data), 4 * BLOCK):
            piece = data[start : start + 4 * BLOCK]
            for length in range(len(piece) // 4, 0, -1):
                block = self._known.get((before, piece[: 4 * length]))
                if block is not None:
                    break
            else:
                break
            found.append(block)
            known += length
            if length < BLOCK:
                break
            before = int(self._serial[block])
        return np.array(found, np.int64), known

    def computed_of(self, blocks: Ints, known: int) -> int:
        """Return the number of the `known` tokens in `blocks` that can be used already."""
        computed = self.computed[blocks]
        whole = int(np.append(computed < BLOCK, True).argmax())
        return min(known, whole * BLOCK + int(computed[whole : whole + 1].sum()))
