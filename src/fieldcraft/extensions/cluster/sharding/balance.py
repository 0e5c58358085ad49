"""Balancing of training units over ranks: equal tokens, with common prefixes kept together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import final

from fieldcraft.train.batch import SampleUnit, count_new_tokens, sort_by_prefix

MAX_LOAD_RATIO = 1.05  # maximum load of a rank, relative to the mean


def balance_units(units: Sequence[SampleUnit], ranks: int) -> list[list[SampleUnit]]:
    """Assign each unit to exactly one rank, and return the units of each rank.

    Units with a common prefix form a block. Blocks are assigned, largest first, to the rank with
    the fewest tokens. While a rank has too many, its largest block is halved: if the halves are on
    different ranks, the prefix is computed on both. Some ranks get no units if there are fewer
    units than ranks.
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
    """Units sorted by prefix and identified by their indices. A block is a range of indices."""

    def __init__(self, units: Sequence[SampleUnit]) -> None:
        self.units = sort_by_prefix(units)
        previous_units = [None, *(unit[-1] for unit in self.units)]
        self._sizes = [count_new_tokens(None, unit) for unit in self.units]
        # length of the prefix that each unit shares with the previous one
        self._shared_prefixes = [
            size - count_new_tokens(previous, unit)
            for size, previous, unit in zip(self._sizes, previous_units, self.units, strict=False)
        ]

    def split_blocks(self) -> Iterator[range]:
        """Yield blocks of neighbours with a common prefix."""
        borders = [place for place, shared in enumerate(self._shared_prefixes) if not shared]
        for start, end in pairwise([*borders, len(self.units)]):
            yield range(start, end)

    def count_tokens(self, places: Sequence[int]) -> int:
        """Return the number of tokens that a rank computes for the units with these ascending
        indices. The prefix shared by two units is the minimum over the neighbours between them."""
        common = (min(self._shared_prefixes[a + 1 : b + 1]) for a, b in pairwise(places))
        return sum(self._sizes[place] for place in places) - sum(common)

    def list_indices(self, blocks: Sequence[range]) -> list[int]:
        """Return the indices of all units of the blocks, in order."""
        return sorted(place for block in blocks for place in block)


def _assign_blocks(order: _PrefixOrder, blocks: Sequence[range], ranks: int) -> list[list[range]]:
    """Assign blocks to the ranks, largest first, each to the rank with the fewest tokens so far."""
    blocks_by_rank: list[list[range]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for block in sorted(blocks, key=order.count_tokens, reverse=True):
        rank = sizes.index(min(sizes))
        blocks_by_rank[rank].append(block)
        sizes[rank] = order.count_tokens(order.list_indices(blocks_by_rank[rank]))
    return blocks_by_rank
