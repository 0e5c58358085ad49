"""Cache blocks: ownership, lookup of prefixes, and no leaks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.engine.local.block_allocator import BLOCK_TOKENS, BlockAllocator
from fieldcraft.engine.local.sequences import SequenceTable


class Copied:
    """Substitute for keys and values that stores the tokens computed for each block."""

    def __init__(self) -> None:
        self.held = np.full((4000, BLOCK_TOKENS), -1)

    def copy(self, sources: np.ndarray, targets: np.ndarray, counts: np.ndarray) -> None:
        before = self.held.copy()
        for source, target, count in zip(sources, targets, counts, strict=True):
            self.held[target, :count] = before[source, :count]

    def clear(self, blocks: list[int]) -> None:
        self.held[blocks] = -1


def compute(table: SequenceTable, row: int, cache: Copied, count: int) -> None:
    """Compute the next tokens of a row."""
    for position in range(int(table.num_cached[row]), int(table.num_cached[row]) + count):
        block = table.block_table[row, position // BLOCK_TOKENS]
        cache.held[block, position % BLOCK_TOKENS] = table.blocks.tokens[
            block, position % BLOCK_TOKENS
        ]
    table.advance(np.array([row]), np.array([count]))


def begin(table: SequenceTable, session: str, ids: np.ndarray, cache: Copied) -> tuple[int, int]:
    """Start a turn with `ids`, and return the session's row and its number of cached tokens."""
    row = table.row_by_session.get(session)
    if row is None:
        blocks, known = table.blocks.match_prefix(ids)
        cached = table.blocks.count_computed(blocks, min(known, len(ids) - 1))
        row, _ = table.acquire(session)
        table.start(row, ids, blocks, cached)
    else:
        table.resume(row, ids)
    table.is_active[row] = True
    table.sync_storage(cache)
    return row, int(table.num_cached[row])


def test_prefixes_are_known_by_whole_blocks_and_at_their_end() -> None:
    table, cache, ids = SequenceTable(2), Copied(), np.arange(80)
    row, cached = begin(table, "a", ids, cache)
    assert cached == 0
    compute(table, row, cache, 80)
    for length, known in ((80, 80), (100, 80), (79, 64), (64, 64), (63, 32), (20, 0)):
        prefix = np.arange(length)
        blocks, found = table.blocks.match_prefix(prefix)
        assert found == known
        assert blocks.tolist() == table.block_table[row, : -(-known // BLOCK_TOKENS)].tolist()
    assert table.blocks.match_prefix(np.arange(1, 80))[1] == 0


def test_a_prefix_that_is_still_being_computed_is_known_but_not_usable() -> None:
    table, cache, ids = SequenceTable(2), Copied(), np.arange(80)
    row, _ = begin(table, "a", ids, cache)
    compute(table, row, cache, 40)
    blocks, known = table.blocks.match_prefix(ids)
    assert (known, table.blocks.count_computed(blocks, known)) == (80, 40)
    table.release(row)  # cancelled: tokens that were not computed are unknown again
    assert table.blocks.match_prefix(ids)[1] == 32


def test_equal_blocks_behind_different_prefixes_are_different() -> None:
    table, cache = SequenceTable(2), Copied()
    first, second = np.arange(96), np.arange(96)
    second[0] = 500
    for name, ids in (("a", first), ("b", second)):
        row, cached = begin(table, name, ids, cache)
        assert cached == 0  # although the blocks from the second one on hold the same tokens
        compute(table, row, cache, 96)
    assert table.blocks.match_prefix(second)[0].tolist() == table.block_table[1, :3].tolist()


def test_what_followed_a_block_is_unknown_once_the_block_holds_something_else() -> None:
    blocks = BlockAllocator()
    first, second = blocks.allocate(2).tolist()
    ids = np.arange(64)
    blocks.register_prefix(ids, [first, second])
    blocks.num_computed[[first, second]] = BLOCK_TOKENS
    blocks.truncate(first, 0)
    other = np.concatenate([np.arange(100, 132), ids[32:]])
    blocks.register_prefix(other[:32], [first])
    assert blocks.match_prefix(other)[1] == 32  # `second` follows other tokens
    assert blocks.match_prefix(ids)[1] == 0


def test_the_longest_free_blocks_are_taken_first_and_ends_before_beginnings() -> None:
    blocks = BlockAllocator()
    held = blocks.allocate(16)
    blocks.release(held[4:6])
    blocks.release(held[0:2])
    assert blocks.allocate(3).tolist() == [held[5], held[4], held[1]]


def test_memory_follows_the_tokens_that_sessions_hold() -> None:
    table, cache = SequenceTable(256), Copied()
    lengths = [300] * 255 + [8192]
    for i, length in enumerate(lengths):
        begin(table, str(i), np.arange(length) + 10_000 * i, cache)
    held = sum(-(-length // BLOCK_TOKENS) for length in lengths)
    assert held <= table.blocks.num_blocks <= 1.25 * held + 16
    assert table.blocks.num_blocks * BLOCK_TOKENS < 256 * 8192 / 15


sessions = st.lists(
    st.tuples(
        st.integers(0, 4),  # session
        st.integers(0, 3),  # source whose text it continues or rewrites
        st.integers(1, 100),  # number of source tokens to reuse
        st.integers(1, 70),  # new tokens
        st.integers(0, 3),  # operation after the turn
    ),
    max_size=40,
)


@given(sessions)
def test_no_sequence_of_turns_mixes_tokens_or_loses_blocks(turns: list[tuple[int, ...]]) -> None:
    """For any operations, the cache has each session's own keys and values. At the end every block
    is free.
    """
    table, cache, rng = SequenceTable(3), Copied(), np.random.default_rng(0)
    texts = [np.arange(70), np.arange(40), np.arange(1), np.arange(32)]
    for session, source, reused, new, then in turns:
        ids = np.concatenate([texts[source][:reused], rng.integers(0, 3, new)])
        texts[source] = ids
        row, cached = begin(table, str(session), ids, cache)
        total = len(ids) if then else cached + (len(ids) - cached) // 2
        compute(table, row, cache, total - cached)
        places = np.arange(total)
        blocks = table.block_table[row, places // BLOCK_TOKENS]
        assert cache.held[blocks, places % BLOCK_TOKENS].tolist() == ids[:total].tolist()
        assert table.read_tokens(row, 0, len(ids)).tolist() == ids.tolist()
        match then:
            case 0 | 1:
                table.release(row)
            case 2:
                sampled = np.array([7])
                table.append(np.array([row]), sampled, np.zeros(1))
                table.finish_turn(row)
            case 3:
                table.finish_turn(row)
                swap = np.array([[0], [table.blocks.num_blocks - 1]])
                table.swap_blocks(*swap)
                cache.held[swap.ravel()] = cache.held[swap[::-1].ravel()]
    for row in list(table.row_by_session.values()):
        table.release(row)
    assert not table.blocks.ref_counts.any()
    assert set(table.blocks._free_blocks) == set(range(table.blocks.num_blocks))
    assert len(table.blocks._prefix_blocks) == sum(map(len, table.blocks._block_keys))


@pytest.mark.parametrize("others", [10, 2000])
def test_a_look_up_does_not_depend_on_the_number_of_rows(others: int) -> None:
    """The test counts the lookups in the dictionary and does not measure time."""
    blocks = BlockAllocator()
    for i in range(others):
        blocks.register_prefix(np.arange(64) + 100 * i, blocks.allocate(2).tolist())

    class Counting(dict):
        asked = 0

        def get(self, *args: object) -> object:
            self.asked += 1
            return super().get(*args)

    blocks._prefix_blocks = counting = Counting(blocks._prefix_blocks)
    assert blocks.match_prefix(np.arange(80) + 100 * 7)[1] == 64
    assert counting.asked == 2 + 16
