"""Blocks of the cache: who holds them, how prefixes are found, and that none is lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.engine.local.blocks import BLOCK, Blocks
from fieldcraft.engine.local.rows import Rows


class Copied:
    """In the place of keys and values: the tokens that each block got them for."""

    def __init__(self) -> None:
        self.held = np.full((4000, BLOCK), -1)

    def copy(self, sources: np.ndarray, targets: np.ndarray, counts: np.ndarray) -> None:
        before = self.held.copy()
        for source, target, count in zip(sources, targets, counts, strict=True):
            self.held[target, :count] = before[source, :count]

    def clear(self, blocks: list[int]) -> None:
        self.held[blocks] = -1


def compute(table: Rows, row: int, cache: Copied, count: int) -> None:
    """Compute the next tokens of a row."""
    for position in range(int(table.cached[row]), int(table.cached[row]) + count):
        block = table.table[row, position // BLOCK]
        cache.held[block, position % BLOCK] = table.blocks.tokens[block, position % BLOCK]
    table.advance(np.array([row]), np.array([count]))


def begin(table: Rows, session: str, ids: np.ndarray, cache: Copied) -> tuple[int, int]:
    """The row of a session that brings `ids`, and how many of them need not be computed."""
    row = table.of.get(session)
    if row is None:
        blocks, known = table.blocks.find(ids)
        kept = table.blocks.computed_of(blocks, min(known, len(ids) - 1))
        row, _ = table.claim(session)
        table.start(row, ids, blocks, kept)
    else:
        table.resume(row, ids)
    table.active[row] = True
    table.copy_in(cache)
    return row, int(table.cached[row])


def test_prefixes_are_known_by_whole_blocks_and_at_their_end() -> None:
    table, cache, ids = Rows(2), Copied(), np.arange(80)
    row, kept = begin(table, "a", ids, cache)
    assert kept == 0
    compute(table, row, cache, 80)
    for length, known in ((80, 80), (100, 80), (79, 64), (64, 64), (63, 32), (20, 0)):
        wanted = np.arange(length)
        blocks, found = table.blocks.find(wanted)
        assert found == known
        assert blocks.tolist() == table.table[row, : -(-known // BLOCK)].tolist()
    assert table.blocks.find(np.arange(1, 80))[1] == 0


def test_a_prefix_that_is_still_being_computed_is_known_but_not_usable() -> None:
    table, cache, ids = Rows(2), Copied(), np.arange(80)
    row, _ = begin(table, "a", ids, cache)
    compute(table, row, cache, 40)
    blocks, known = table.blocks.find(ids)
    assert (known, table.blocks.computed_of(blocks, known)) == (80, 40)
    table.release(row)  # given up: what was not computed is not known any more
    assert table.blocks.find(ids)[1] == 32


def test_equal_blocks_behind_different_prefixes_are_different() -> None:
    table, cache = Rows(2), Copied()
    first, second = np.arange(96), np.arange(96)
    second[0] = 500
    for name, ids in (("a", first), ("b", second)):
        row, kept = begin(table, name, ids, cache)
        assert kept == 0  # though the blocks from the second one on hold the same tokens
        compute(table, row, cache, 96)
    assert table.blocks.find(second)[0].tolist() == table.table[1, :3].tolist()


def test_what_followed_a_block_is_unknown_once_the_block_holds_something_else() -> None:
    blocks = Blocks()
    first, second = blocks.take(2).tolist()
    ids = np.arange(64)
    blocks.remember(ids, [first, second])
    blocks.computed[[first, second]] = BLOCK
    blocks.rewrite(first, 0)
    other = np.concatenate([np.arange(100, 132), ids[32:]])
    blocks.remember(other[:32], [first])
    assert blocks.find(other)[1] == 32  # `second` stands behind other tokens
    assert blocks.find(ids)[1] == 0


def test_the_longest_free_blocks_are_taken_first_and_ends_before_beginnings() -> None:
    blocks = Blocks()
    held = blocks.take(16)
    blocks.drop(held[4:6])
    blocks.drop(held[0:2])
    assert blocks.take(3).tolist() == [held[5], held[4], held[1]]


def test_memory_follows_the_tokens_that_sessions_hold() -> None:
    table, cache = Rows(256), Copied()
    lengths = [300] * 255 + [8192]
    for i, length in enumerate(lengths):
        begin(table, str(i), np.arange(length) + 10_000 * i, cache)
    held = sum(-(-length // BLOCK) for length in lengths)
    assert held <= table.blocks.count <= 1.25 * held + 16
    assert table.blocks.count * BLOCK < 256 * 8192 / 15


sessions = st.lists(
    st.tuples(
        st.integers(0, 4),  # session
        st.integers(0, 3),  # whose tokens it continues, or rewrites
        st.integers(1, 100),  # how many of them it keeps
        st.integers(1, 70),  # new tokens
        st.integers(0, 3),  # what happens to it then
    ),
    max_size=40,
)


@given(sessions)
def test_no_sequence_of_turns_mixes_tokens_or_loses_blocks(turns: list[tuple[int, ...]]) -> None:
    """Whatever sessions do, the cache holds for each the keys and values of its own tokens; when
    all are gone, every block is free."""
    table, cache, rng = Rows(3), Copied(), np.random.default_rng(0)
    texts = [np.arange(70), np.arange(40), np.arange(1), np.arange(32)]
    for session, source, kept, new, then in turns:
        ids = np.concatenate([texts[source][:kept], rng.integers(0, 3, new)])
        texts[source] = ids
        row, cached = begin(table, str(session), ids, cache)
        total = len(ids) if then else cached + (len(ids) - cached) // 2
        compute(table, row, cache, total - cached)
        places = np.arange(total)
        blocks = table.table[row, places // BLOCK]
        assert cache.held[blocks, places % BLOCK].tolist() == ids[:total].tolist()
        assert table.read(row, 0, len(ids)).tolist() == ids.tolist()
        match then:
            case 0 | 1:
                table.release(row)
            case 2:
                sampled = np.array([7])
                table.add(np.array([row]), sampled, np.zeros(1))
                table.park(row)
            case 3:
                table.park(row)
                swap = np.array([[0], [table.blocks.count - 1]])
                table.exchange(*swap)
                cache.held[swap.ravel()] = cache.held[swap[::-1].ravel()]
    for row in list(table.of.values()):
        table.release(row)
    assert not table.blocks.users.any()
    assert set(table.blocks._free) == set(range(table.blocks.count))
    assert len(table.blocks._known) == sum(map(len, table.blocks._keys))


@pytest.mark.parametrize("others", [10, 2000])
def test_a_look_up_does_not_depend_on_the_number_of_rows(others: int) -> None:
    """Counted, not timed: the look-ups in the dictionary."""
    blocks = Blocks()
    for i in range(others):
        blocks.remember(np.arange(64) + 100 * i, blocks.take(2).tolist())

    class Counting(dict):
        asked = 0

        def get(self, *args: object) -> object:
            self.asked += 1
            return super().get(*args)

    blocks._known = counting = Counting(blocks._known)
    assert blocks.find(np.arange(80) + 100 * 7)[1] == 64
    assert counting.asked == 2 + 16
