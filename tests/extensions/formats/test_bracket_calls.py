"""Calls in brackets, in ToolACE's format."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.records import RecordError
from fieldcraft.extensions.formats.demonstration_formats import FORMATS
from fieldcraft.extensions.formats.markup import parse_bracket_calls
from fieldcraft.types import Answer, ToolCall

NAMES = st.sampled_from(["search", "Tram Timetable API", "ferries/price", "v1.get-all", "Zeit für"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.sampled_from("a)](=,'\"[\\ \n"), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab "), inner, max_size=2)
    ),
    max_leaves=5,
)
CALLS = st.lists(
    st.builds(ToolCall, NAMES, st.dictionaries(st.sampled_from(["town", "n"]), VALUES, max_size=2)),
    min_size=1,
    max_size=3,
)
OFFERED = (
    json.dumps(
        [{"name": n} for n in ("search", "Tram Timetable API", "ferries/price", "v1.get-all")]
    )
    + '"Zeit für"'
)


def written(calls: list[ToolCall], way: Any) -> str:
    texts = (
        f"{call.tool}({', '.join(f'{key}={way(value)}' for key, value in call.arguments.items())})"
        for call in calls
    )
    return f"[{', '.join(texts)}]"


@pytest.mark.parametrize("way", [repr, json.dumps])
@given(calls=CALLS)
def test_calls_come_back_however_their_values_are_written(way: Any, calls: list[ToolCall]) -> None:
    assert parse_bracket_calls(f" {written(calls, way)}\n", OFFERED) == calls


@given(CALLS, st.integers(1, 40))
def test_a_part_of_them_is_never_read(calls: list[ToolCall], cut: int) -> None:
    text = written(calls, repr)
    part = text[: max(len(text) - cut, 0)]
    with suppress(RecordError):
        assert parse_bracket_calls(part, OFFERED) is None


@pytest.mark.parametrize(
    "text", ["[1, 2]", "[A](http://a.example/)", "[other(n=1)]", "search(n=1)", "", "["]
)
def test_other_texts_are_no_calls(text: str) -> None:
    assert parse_bracket_calls(text, OFFERED) is None


@pytest.mark.parametrize(
    "text", ["[search(1)]", "[search(**a)]", "[search(n=f(1))]", "[search(n=1)] ok", "[search(n=1]"]
)
def test_what_is_no_plain_call_is_not_guessed(text: str) -> None:
    with pytest.raises(RecordError, match="a call"):
        parse_bracket_calls(text, OFFERED)


def conversation(*results: dict[str, Any]) -> dict[str, Any]:
    turns = [("user", "Q?"), ("assistant", "[a(n=1), b(n=2)]"), ("tool", json.dumps(results))]
    turns += [("assistant", "[a] of [b(s)]")]
    system = 'Use [func(name=value)]: [{"name": "a"}, {"name": "b"}]'
    messages = [{"from": who, "value": text} for who, text in turns]
    return {"system": system, "conversations": messages}


def test_results_that_name_their_tools_in_another_order_are_not_paired() -> None:
    first, second = {"name": "a", "results": 1}, {"name": "b", "results": 2}
    _, steps = FORMATS["sharegpt"].to_demonstration(conversation(first, second))
    assert steps[:2] == [ToolCall("a", {"n": 1}), ToolCall("b", {"n": 2})]
    assert steps[-1] == Answer("[a] of [b(s)]")
    with pytest.raises(RecordError, match="not in the order of the calls"):
        FORMATS["sharegpt"].to_demonstration(conversation(second, first))
