"""The micro-batches of a rank: as many as the others have, and as large as they hold together."""

from typing import Any

import pytest
from sharded_parts import units

from fieldcraft.train.batch import micro_batches
from fieldcraft.train.sharding.shards import Shards


class Grid:
    """What a rank knows of the others: the most micro-batches that one of them has."""

    def __init__(self, context: int, most: int) -> None:
        self.context = context
        self.fullest = most

    def most(self, number: int) -> int:
        return max(number, self.fullest)


@pytest.mark.parametrize("context", [1, 2])
def test_ranks_that_share_a_micro_batch_hold_more_together(context: int) -> None:
    grid: Any = Grid(context, 0)
    batches = list(Shards(grid).batches(units(0), 100))
    together = micro_batches(units(0), 100 * context)
    assert [len(batch.ids_N) for batch in batches] == [len(batch.ids_N) for batch in together]
    assert not any(batch.idle for batch in batches)


@pytest.mark.parametrize("count", [0, 2])
def test_a_rank_with_fewer_micro_batches_runs_idle_ones(count: int) -> None:
    chosen = units(0, groups=1)[:count]
    grid: Any = Grid(1, 5)
    batches = list(Shards(grid).batches(chosen, 1000))
    assert [batch.idle for batch in batches] == [False] * min(count, 1) + [True] * (
        5 - min(count, 1)
    )
