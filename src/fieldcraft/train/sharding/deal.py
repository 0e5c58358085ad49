"""Which rank trains on which units: as many tokens for each, and what begins alike together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fieldcraft.train.batch import Unit, added, side_by_side

EVEN = 1.05  # the most that a rank has, as a multiple of what it would have if all had as much

Block = list[Unit]  # neighbours, whose common beginnings are computed once


def deal(units: Sequence[Unit], ranks: int) -> list[list[Unit]]:
    """The units of each rank. Every unit is somewhere, and none twice.

    Units that begin alike are a block, and blocks are dealt to the rank that has the fewest tokens,
    the largest first. While a rank has too many, a block of its is halved: then what the halves
    share is computed twice. A rank gets none where there are fewer units than ranks.
    """
    blocks = list(_blocks(side_by_side(units)))
    while True:
        hands = _deal(blocks, ranks)
        sizes = [sum(map(_size, hand)) for hand in hands]
        fullest = hands[sizes.index(max(sizes))]
        divisible = [block for block in fullest if len(block) > 1]
        if max(sizes) * ranks <= EVEN * sum(sizes) or not divisible:
            return [[unit for block in hand for unit in block] for hand in hands]
        large = max(divisible, key=_size)
        half = len(large) // 2
        place = next(p for p, block in enumerate(blocks) if block is large)
        blocks[place : place + 1] = [large[:half], large[half:]]


def _blocks(units: Sequence[Unit]) -> Iterator[Block]:
    block: Block = []
    for unit in units:
        if block and added(block[-1][-1], unit) == added(None, unit):
            yield block
            block = []
        block.append(unit)
    if block:
        yield block


def _deal(blocks: Sequence[Block], ranks: int) -> list[list[Block]]:
    """The largest first, each to the rank that has the fewest tokens so far."""
    hands: list[list[Block]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for block in sorted(blocks, key=_size, reverse=True):
        rank = sizes.index(min(sizes))
        hands[rank].append(block)
        sizes[rank] += _size(block)
    return hands


def _size(block: Block) -> int:
    """Tokens that are computed."""
    before = [None, *(unit[-1] for unit in block[:-1])]
    return sum(added(last, unit) for last, unit in zip(before, block, strict=True))
