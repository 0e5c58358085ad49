"""Balance of units over ranks: no unit is lost, loads are even, and groups stay together."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.extensions.cluster.sharding.trainer import MAX_LOAD_RATIO, balance_units
from fieldcraft.train.batch import Sample, SampleUnit, count_new_tokens, sort_by_prefix


def unit(ids: list[int]) -> SampleUnit:
    zeros = np.zeros(len(ids), np.float32)
    return (Sample(np.array(ids), zeros, zeros, zeros, zeros, zeros),)


def group(number: int, prompt: int, lengths: list[int]) -> list[SampleUnit]:
    """Return continuations of one prompt that differ from their first token on."""
    return [
        unit([number] * prompt + [100 + place] + [7] * (length - 1))
        for place, length in enumerate(lengths)
    ]


def tokens(hand: list[SampleUnit]) -> int:
    """Return the number of tokens that a rank computes, with common prefixes counted once."""
    line = sort_by_prefix(hand)
    before = [None, *(each[-1] for each in line)][: len(line)]
    return sum(count_new_tokens(last, each) for last, each in zip(before, line, strict=True))


GROUPS = st.lists(
    st.tuples(st.integers(1, 60), st.lists(st.integers(1, 200), min_size=1, max_size=8)),
    max_size=12,
)


@given(GROUPS, st.integers(1, 8))
def test_every_unit_is_dealt_once_and_no_rank_has_much_more(
    shapes: list[tuple[int, list[int]]], ranks: int
) -> None:
    units = [u for n, (prompt, lengths) in enumerate(shapes) for u in group(n, prompt, lengths)]
    hands = balance_units(units, ranks)
    assert len(hands) == ranks
    assert sorted(id(u) for hand in hands for u in hand) == sorted(map(id, units))
    sizes = [tokens(hand) for hand in hands]
    largest = max((len(u[0]) for u in units), default=0)
    # the excess is at most one indivisible unit
    assert max(sizes) <= max(MAX_LOAD_RATIO * sum(sizes) / ranks, min(sizes) + largest)


def test_groups_stay_together_where_that_is_even() -> None:
    units = [u for number in range(4) for u in group(number, 40, [10, 10, 10])]
    hands = balance_units(units, 2)
    assert [tokens(hand) for hand in hands] == [140, 140]
    for hand in hands:
        assert len({int(u[0].ids[0]) for u in hand}) == 2


def test_a_group_is_halved_where_a_rank_would_have_nothing() -> None:
    hands = balance_units(group(1, 40, [10, 10, 10, 10]), 2)
    assert [tokens(hand) for hand in hands] == [60, 60]  # the prompt is computed twice


def test_a_rank_that_has_a_part_of_a_group_counts_the_prompt_once() -> None:
    units = [*group(1, 40, [10]), *group(2, 40, [100, 20, 50])]
    # 40 + 100 and 50, or 40 + 100 + 20, and 40 + 50 next to 40 + 10
    assert sorted(tokens(hand) for hand in balance_units(units, 2)) == [140, 160]


def test_one_long_rollout_is_not_joined_by_others() -> None:
    units = [unit([1] * 300), *(unit([2 + n] * 100) for n in range(3))]
    assert sorted(map(tokens, balance_units(units, 2))) == [300, 300]


@pytest.mark.parametrize("ranks", [1, 3])
def test_without_units_every_rank_gets_none(ranks: int) -> None:
    assert balance_units([], ranks) == [[]] * ranks


def test_what_is_dealt_does_not_depend_on_the_order_of_the_units() -> None:
    units = [u for number in range(5) for u in group(number, 20 + number, [9, 30 + number])]
    one, other = balance_units(units, 3), balance_units(units[::-1], 3)
    assert [[u[0].ids.tolist() for u in hand] for hand in one] == [
        [u[0].ids.tolist() for u in hand] for hand in other
    ]
    assert all(a is not b for a, b in pairwise(one))
