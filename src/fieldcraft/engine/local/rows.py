"""What the local engine knows about every row of its cache, as columns of numbers.

A step touches hundreds of rows, so nothing here is an object per row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Rows:
    """One entry per cache row in every column.

    A row without an owner is free, but what its cache holds stays known (`tokens[:cached]`) until
    the row is used again, so a later prompt can start from it.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        self.tokens = np.zeros((rows, capacity), np.int64)
        self.logprobs = np.zeros((rows, capacity), np.float32)  # of sampled tokens
        self.length = np.zeros(rows, np.int64)  # tokens known
        self.cached = np.zeros(rows, np.int64)  # tokens whose keys and values are in the cache
        self.turn_start = np.zeros(rows, np.int64)  # length when the running turn began
        self.turn_end = np.zeros(rows, np.int64)  # length at which it ends at the latest
        self.temperature = np.zeros(rows, np.float32)
        self.seed = np.zeros(rows, np.uint64)
        self.stop_set = np.zeros(rows, np.int64)
        self.active = np.zeros(rows, bool)
        self.used = np.zeros(rows, np.int64)  # when the row last changed hands, in engine time
        self.owner = np.full(rows, None, object)  # session

    @property
    def shape(self) -> tuple[int, int]:
        rows, capacity = self.tokens.shape
        return rows, capacity

    def grow(self, rows: int, capacity: int) -> None:
        more, longer = rows - self.shape[0], capacity - self.shape[1]
        for name, column in self._columns().items():
            padding = [(0, more), (0, longer)][: column.ndim]
            filler: Any = None if column.dtype == object else 0
            setattr(self, name, np.pad(column, padding, constant_values=filler))

    def exchange(self, a: Ints, b: Ints) -> None:
        """Swap rows `a[i]` and `b[i]`."""
        read, write = np.concatenate([a, b]), np.concatenate([b, a])
        for column in self._columns().values():
            column[write] = column[read]

    def _columns(self) -> dict[str, NDArray[Any]]:
        return vars(self)

    def vacant(self) -> int | None:
        """The row a new session should take: a free one, else a parked one, the longest unused
        first; None if every row is active."""
        for candidates in (self.owner == None, ~self.active):  # noqa: E711  (element-wise)
            if candidates.any():
                return int(np.where(candidates, self.used, np.iinfo(np.int64).max).argmin())
        return None

    def common_prefix(self, ids: Ints, rows: Ints) -> Ints:
        """[len(rows)] how many leading tokens of `ids` each of `rows` knows, at most all but the
        last one, which must be computed in any case."""
        width = min(len(ids) - 1, self.shape[1])
        different = np.ones((len(rows), width + 1), bool)
        different[:, :width] = self.tokens[rows, :width] != ids[:width]
        return np.minimum(different.argmax(1), self.length[rows])
