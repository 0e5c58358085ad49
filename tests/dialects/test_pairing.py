"""Results belong to the calls that they name, in whatever order they came."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.dialects.pairing import Label, Unpaired, order_of_calls

IDS = st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=5, unique=True)


def labels(*names: str) -> list[Label]:
    return [Label(name) for name in names]


@given(IDS, st.randoms())
def test_ids_decide_whatever_the_order(ids: list[str], rng) -> None:
    came = list(ids)
    rng.shuffle(came)
    order = order_of_calls(labels(*ids), labels(*came))
    assert [came[place] for place in order] == ids


@given(IDS, st.lists(st.text(max_size=3), max_size=6))
def test_any_other_ids_are_refused(ids: list[str], came: list[str]) -> None:
    if sorted(ids) == sorted(came):
        return
    with pytest.raises(Unpaired):
        order_of_calls(labels(*ids), labels(*came))


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=4), st.integers(0, 5))
def test_without_any_id_there_must_be_as_many_in_the_order_of_their_names(
    tools: list[str], count: int
) -> None:
    calls = [Label("", tool) for tool in tools]
    assert order_of_calls(calls, calls) == list(range(len(calls)))
    assert order_of_calls(calls, [Label()] * len(calls)) == list(range(len(calls)))
    if count != len(calls):
        with pytest.raises(Unpaired, match="as many"):
            order_of_calls(calls, [Label()] * count)
    if tools != tools[::-1]:
        with pytest.raises(Unpaired, match="order"):
            order_of_calls(calls, calls[::-1])


@pytest.mark.parametrize(
    ("calls", "results", "reason"),
    [
        ([], [""], "a result without a call"),
        (["a", ""], ["a", "b"], "a call without an id"),
        (["", ""], ["a", "b"], "a call without an id"),
        (["a"], [""], "a result without the id of its call"),
        (["a", "a"], ["a", "a"], "two calls with the same id"),
        (["a", "b"], ["a", "c"], "a result of an unknown call"),
        (["a", "b"], ["a", "a"], "two results of one call"),
        (["a", "b"], ["b"], "a call without a result"),
    ],
)
def test_every_reason(calls: list[str], results: list[str], reason: str) -> None:
    with pytest.raises(Unpaired, match=reason):
        order_of_calls(labels(*calls), labels(*results))
