import numpy as np
import torch

from fieldcraft.engine.local.batch_plan import order_rows, plan_batch
from fieldcraft.engine.local.sequences import SequenceTable

CPU = torch.device("cpu")


def filled(*lengths: int, shared: int = 0) -> SequenceTable:
    """Return rows with common first blocks; further tokens of row i are 1000 * i + position."""
    table = SequenceTable(len(lengths))
    for row, length in enumerate(lengths):
        ids = np.arange(length) + 1000 * row
        ids[: 32 * shared] = np.arange(32 * shared)
        assert table.acquire(str(row)) == (row, False)
        blocks, known = table.blocks.match_prefix(ids)
        table.start(row, ids, blocks, min(known, 32 * shared))
    return table


def test_rows_attend_in_groups_of_similar_size() -> None:
    table = filled(100, 8, 100, 5)
    starts, counts = np.array([0, 7, 98, 2]), np.array([100, 1, 2, 3])
    line = order_rows(starts, counts)
    assert line.tolist() == [1, 3, 2, 0]
    plan = plan_batch(table, line, starts[line], counts[line], CPU, by_block=True)
    assert plan.ids.tolist() == [1007, 3002, 3003, 3004, 2098, 2099, *range(100)]
    assert plan.positions.tolist() == [7, 2, 3, 4, 98, 99, *range(100)]
    # Row 0 has blocks 0 to 3, row 1 has one block, row 2 has four and row 3 has one.
    assert plan.blocks.tolist() == [4, 9, 9, 9, 8, 8, *[0] * 32, *[1] * 32, *[2] * 32, *[3] * 4]
    assert plan.num_decoding == 1
    [reading] = plan.block_reads
    assert reading.blocks == slice(5)  # contiguous, so blocks without a reader are included
    assert reading.rows.tolist() == [1, 1, 1, 1, 0]
    assert reading.hidden_mask(None)[4].flatten().tolist() == [False] * 8 + [True] * 24
    assert reading.hidden_mask(3)[4].flatten().tolist() == [True] * 5 + [False] * 3 + [True] * 24
    short, longer, long = plan.prefill_groups
    assert short.blocks.tolist() == [[9]]
    assert short.mask(None).sum(-1).tolist() == [[3, 4, 5]]
    assert short.mask(4).sum(-1).tolist() == [[3, 4, 4]]
    assert not short.has_no_context
    assert longer.blocks.tolist() == [[5, 6, 7, 8]]
    assert longer.token_slice == slice(4, 6)
    assert long.mask(None).shape == (1, 100, 128)
    assert long.has_no_context
    assert long.padded_index[1].tolist() == list(range(100))


def test_rows_that_begin_are_not_with_those_that_go_on() -> None:
    table = filled(64, 64, 64)
    starts, counts = np.array([0, 4, 0]), np.array([64, 60, 60])
    line = order_rows(starts, counts)
    plan = plan_batch(table, line, starts[line], counts[line], CPU, by_block=True)
    assert [
        (group.query_positions.shape, group.has_no_context) for group in plan.prefill_groups
    ] == [
        ((2, 64), True),
        ((1, 60), False),
    ]


def test_short_rows_of_a_group_read_nothing_of_others() -> None:
    table = filled(70, 128)
    table.block_table[0, 3] = 99  # stale entry of another session
    starts, counts = np.array([60, 120]), np.array([3, 3])
    plan = plan_batch(table, np.array([0, 1]), starts, counts, CPU, by_block=True)
    assert plan.prefill_groups[0].blocks.tolist() == [[0, 1, 0, 0], [3, 4, 5, 6]]


def test_a_shared_block_is_read_once_for_all() -> None:
    table = filled(70, 71, 72, shared=2)
    assert table.block_table[:, :3].tolist() == [[0, 1, 2], [0, 1, 3], [0, 1, 4]]
    rows, ones = np.arange(3), np.ones(3, np.int64)
    plan = plan_batch(table, rows, table.length - 1, ones, CPU, by_block=True)
    alone, shared = plan.block_reads
    assert alone.blocks == slice(5)
    assert alone.rows.tolist() == [3, 3, 0, 1, 2]
    assert isinstance(shared.blocks, torch.Tensor)
    assert shared.blocks.tolist() == [0, 1]
    assert shared.rows.view(2, shared.width).tolist() == [[0, 1, 2], [0, 1, 2]]
    assert shared.hidden_mask(None) is None
    seen = ~shared.hidden_mask(40).view(2, shared.width, 32)
    assert seen.sum(-1).tolist() == [[2, 1, 0], [32, 32, 32]]  # up to positions 69, 70 and 71
    assert plan.prefill_groups == ()


def test_blocks_of_few_and_of_many_readers_are_apart() -> None:
    table = filled(*[70] * 2, *[40] * 5, shared=1)
    second = np.arange(70) + 1000
    second[:32] = np.arange(32)
    table.release(0)
    table.acquire("0")
    table.start(
        0, second, table.blocks.match_prefix(second)[0], 64
    )  # now rows 0 and 1 share a second one
    rows, ones = np.arange(7), np.ones(7, np.int64)
    _, few, many = plan_batch(table, rows, table.length - 1, ones, CPU, by_block=True).block_reads
    assert few.rows.tolist() == [1, 0] or few.rows.tolist() == [0, 1]
    assert few.width == 2
    assert many.width == 7
    assert sorted(many.rows.tolist()) == list(range(7))


def test_rows_that_read_copies_are_grouped_by_length() -> None:
    table = filled(8, 2000, 9)
    starts, counts = table.length - 1, np.ones(3, np.int64)
    line = order_rows(starts, counts)
    plan = plan_batch(table, line, starts[line], counts[line], CPU, by_block=False)
    assert plan.block_reads == ()
    assert [group.mask(None).shape for group in plan.prefill_groups] == [(2, 1, 32), (1, 1, 2016)]
