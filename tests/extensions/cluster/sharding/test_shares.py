"""Micro-batches of a rank: the same number on all ranks, filled to the capacity of the ranks."""

from typing import Any

import pytest
from sharded_parts import units

from fieldcraft.extensions.cluster.sharding.shards import FsdpStrategy
from fieldcraft.train.batch import split_micro_batches


class Grid:
    """Stub for the other ranks, with the largest number of micro-batches of any of them."""

    def __init__(self, context: int, most: int) -> None:
        self.context_parallel = context
        self.fullest = most

    def all_reduce_max(self, number: int) -> int:
        return max(number, self.fullest)


@pytest.mark.parametrize("context", [1, 2])
def test_ranks_that_share_a_micro_batch_hold_more_together(context: int) -> None:
    grid: Any = Grid(context, 0)
    batches = list(FsdpStrategy(grid).make_micro_batches(units(0), 100))
    together = split_micro_batches(units(0), 100 * context)
    assert [len(batch.ids_N) for batch in batches] == [len(batch.ids_N) for batch in together]
    assert not any(batch.is_padding for batch in batches)


@pytest.mark.parametrize("count", [0, 2])
def test_a_rank_with_fewer_micro_batches_runs_idle_ones(count: int) -> None:
    chosen = units(0, groups=1)[:count]
    grid: Any = Grid(1, 5)
    batches = list(FsdpStrategy(grid).make_micro_batches(chosen, 1000))
    assert [batch.is_padding for batch in batches] == [False] * min(count, 1) + [True] * (
        5 - min(count, 1)
    )
