"""The units that each rank trains on: as many tokens for each, and what begins alike together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import final

from fieldcraft.train.batch import Unit, added, side_by_side

EVEN = 1.05  # the most that a rank has, as a multiple of what it would have if all had as much


def deal(units: Sequence[Unit], ranks: int) -> list[list[Unit]]:
    """Deal the units to the ranks, and return those of each. Every unit is somewhere, and none
    twice.

    Units that begin alike are a block, and blocks are dealt to the rank that has the fewest tokens,
    the largest first. While a rank has too many, the largest block of its is halved: where other
    ranks get a half, the common beginning is computed on both. A rank gets none where there are
    fewer units than ranks.
    """
    line = _Line(units)
    blocks = list(line.blocks())
    while True:
        owners = _deal(line, blocks, ranks)
        hands = [line.places(owned) for owned in owners]
        sizes = [line.tokens(hand) for hand in hands]
        fullest = owners[sizes.index(max(sizes))]
        divisible = [block for block in fullest if len(block) > 1]
        if max(sizes) * ranks <= EVEN * sum(sizes) or not divisible:
            return [[line.units[place] for place in hand] for hand in hands]
        large = max(divisible, key=line.tokens)
        half = len(large) // 2
        blocks.remove(large)
        blocks += [large[:half], large[half:]]


@final
class _Line:
    """Units side by side, known by their places. A block is a range of places."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = side_by_side(units)
        before = [None, *(unit[-1] for unit in self.units)]
        self._alone = [added(None, unit) for unit in self.units]
        # what each of them has in common with the one before it
        self._shared = [
            alone - added(last, unit)
            for alone, last, unit in zip(self._alone, before, self.units, strict=False)
        ]

    def blocks(self) -> Iterator[range]:
        """Yield the neighbours that begin alike."""
        borders = [place for place, shared in enumerate(self._shared) if not shared]
        for start, end in pairwise([*borders, len(self.units)]):
            yield range(start, end)

    def tokens(self, places: Sequence[int]) -> int:
        """Return the number of tokens that a rank computes of the units in these places, which are
        in order. Two units have in common what all have that stand between them."""
        common = (min(self._shared[a + 1 : b + 1]) for a, b in pairwise(places))
        return sum(self._alone[place] for place in places) - sum(common)

    def places(self, blocks: Sequence[range]) -> list[int]:
        """Return the places of all units of the blocks, in order."""
        return sorted(place for block in blocks for place in block)


def _deal(line: _Line, blocks: Sequence[range], ranks: int) -> list[list[range]]:
    """Deal blocks to the ranks: the largest first, each to the one with the fewest tokens so
    far."""
    owners: list[list[range]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for block in sorted(blocks, key=line.tokens, reverse=True):
        rank = sizes.index(min(sizes))
        owners[rank].append(block)
        sizes[rank] = line.tokens(line.places(owners[rank]))
    return owners
