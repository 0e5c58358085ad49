"""Results belong to the calls that they name, in any order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.dialects.calls import CallLabel, UnmatchedResultError, match_results

IDS = st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=5, unique=True)


def labels(*names: str) -> list[CallLabel]:
    return [CallLabel(name) for name in names]


@given(IDS, st.randoms())
def test_ids_decide_whatever_the_order(ids: list[str], rng) -> None:
    received = list(ids)
    rng.shuffle(received)
    order = match_results(labels(*ids), labels(*received))
    assert [received[place] for place in order] == ids


@given(IDS, st.lists(st.text(max_size=3), max_size=6))
def test_any_other_ids_are_refused(ids: list[str], came: list[str]) -> None:
    if sorted(ids) == sorted(came):
        return
    with pytest.raises(UnmatchedResultError):
        match_results(labels(*ids), labels(*came))


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=4), st.integers(0, 5))
def test_without_any_id_there_must_be_as_many_in_the_order_of_their_names(
    tools: list[str], count: int
) -> None:
    calls = [CallLabel("", tool) for tool in tools]
    assert match_results(calls, calls) == list(range(len(calls)))
    assert match_results(calls, [CallLabel()] * len(calls)) == list(range(len(calls)))
    if count != len(calls):
        with pytest.raises(UnmatchedResultError, match="a different number"):
            match_results(calls, [CallLabel()] * count)
    if tools != tools[::-1]:
        with pytest.raises(UnmatchedResultError, match="order"):
            match_results(calls, calls[::-1])


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
    with pytest.raises(UnmatchedResultError, match=reason):
        match_results(labels(*calls), labels(*results))
