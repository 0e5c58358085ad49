"""The units that each rank trains on: as many tokens for each, and what begins alike together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import final

from fieldcraft.train.batch import SampleUnit, count_new_tokens, sort_by_prefix

MAX_LOAD_RATIO = (
    1.05  # the most that a rank has, as a multiple of what it would have if all had as much
)


def balance_units(units: Sequence[SampleUnit], ranks: int) -> list[list[SampleUnit]]:
    """Assign the units to the ranks, and return those of each. Every unit is somewhere, and none
    twice.

    Units that begin alike are a block, and blocks go to the rank that has the fewest tokens,
    the largest first. While a rank has too many, the largest block of its is halved: where other
    ranks get a half, the common beginning is computed on both. A rank gets none where there are
    fewer units than ranks.
    """
    order = _PrefixOrder(units)
    blocks = list(order.split_blocks())
    while True:
        blocks_by_rank = _assign_blocks(order, blocks, ranks)
        assignments = [order.list_indices(rank_blocks) for rank_blocks in blocks_by_rank]
        sizes = [order.count_tokens(assigned) for assigned in assignments]
        fullest = blocks_by_rank[sizes.index(max(sizes))]
        divisible = [block for block in fullest if len(block) > 1]
        if max(sizes) * ranks <= MAX_LOAD_RATIO * sum(sizes) or not divisible:
            return [[order.units[place] for place in assigned] for assigned in assignments]
        largest = max(divisible, key=order.count_tokens)
        half = len(largest) // 2
        blocks.remove(largest)
        blocks += [largest[:half], largest[half:]]


@final
class _PrefixOrder:
    """Units side by side, known by their places. A block is a range of places."""

    def __init__(self, units: Sequence[SampleUnit]) -> None:
        self.units = sort_by_prefix(units)
        previous_units = [None, *(unit[-1] for unit in self.units)]
        self._sizes = [count_new_tokens(None, unit) for unit in self.units]
        # what each of them has in common with the one before it
        self._shared_prefixes = [
            size - count_new_tokens(previous, unit)
            for size, previous, unit in zip(self._sizes, previous_units, self.units, strict=False)
        ]

    def split_blocks(self) -> Iterator[range]:
        """Yield the neighbours that begin alike."""
        borders = [place for place, shared in enumerate(self._shared_prefixes) if not shared]
        for start, end in pairwise([*borders, len(self.units)]):
            yield range(start, end)

    def count_tokens(self, places: Sequence[int]) -> int:
        """Return the number of tokens that a rank computes of the units in these places, which are
        in order. Two units have in common what all have that stand between them."""
        common = (min(self._shared_prefixes[a + 1 : b + 1]) for a, b in pairwise(places))
        return sum(self._sizes[place] for place in places) - sum(common)

    def list_indices(self, blocks: Sequence[range]) -> list[int]:
        """Return the places of all units of the blocks, in order."""
        return sorted(place for block in blocks for place in block)


def _assign_blocks(order: _PrefixOrder, blocks: Sequence[range], ranks: int) -> list[list[range]]:
    """Assign blocks to the ranks: the largest first, each to the one with the fewest tokens so
    far."""
    blocks_by_rank: list[list[range]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for block in sorted(blocks, key=order.count_tokens, reverse=True):
        rank = sizes.index(min(sizes))
        blocks_by_rank[rank].append(block)
        sizes[rank] = order.count_tokens(order.list_indices(blocks_by_rank[rank]))
    return blocks_by_rank
