"""What both front ends read and write of OpenAI's chat completions."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.gateway.messages import in_order, read_turn_request
from fieldcraft.gateway.protocol import Message, chunk, head, usage_chunk
from fieldcraft.gateway.refusals import Refused
from fieldcraft.serving.asked import read_chat

USER: dict[str, Any] = {"role": "user", "content": "Who?"}
READERS = pytest.mark.parametrize("read", [read_turn_request, read_chat])


def body(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **more}).encode()


@READERS
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
def test_a_stream_says_what_was_used_only_where_it_is_asked(read: Any, options: Any) -> None:
    asked = read(body(stream=True, stream_options=options))
    assert asked.stream
    assert asked.with_usage is bool(options and options["include_usage"])


@READERS
@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "user"}, "messages.0"),
        ({"role": "critic", "content": "x"}, "messages.0.role"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages.0.content"),
    ],
)
def test_messages_of_another_form_are_refused(read: Any, message: Any, place: str) -> None:
    with pytest.raises(Refused, match=place):
        read(body(messages=[message]))


def test_a_served_agent_refuses_calls_of_others() -> None:
    made = {"name": "search", "arguments": "{}"}
    for message in (
        {"role": "assistant", "content": "x", "function_call": made},
        {"role": "assistant", "tool_calls": [{"function": made}]},
        {"role": "function", "name": "search", "content": "x"},
    ):
        with pytest.raises(Refused, match="runs tools of its own"):
            read_chat(body(messages=[USER, message, USER]))


def conversation(ids: list[str], results: list[str]) -> list[Message]:
    calls = [{"id": i, "function": {"name": "f", "arguments": "{}"}} for i in ids]
    given = [USER, {"role": "assistant", "tool_calls": calls}]
    given += [{"role": "tool", "tool_call_id": i, "content": f"of {i}"} for i in results]
    return [Message.model_validate(message) for message in (*given, USER)]


@given(st.permutations(["a", "b", "c"]), st.permutations(["a", "b", "c"]))
def test_results_are_in_the_order_of_their_calls(calls: list[str], results: list[str]) -> None:
    found = in_order(conversation(calls, results))
    assert [message.text for message in found[2:5]] == [f"of {i}" for i in calls]
    assert found == conversation(calls, calls)


@given(st.lists(st.sampled_from("ab"), max_size=3), st.lists(st.sampled_from("abc"), max_size=4))
def test_results_of_no_call_are_refused(calls: list[str], results: list[str]) -> None:
    if sorted(calls) == sorted(results) and len({*calls}) == len(calls):
        return
    with pytest.raises(Refused, match=r"The messages hold .* tool_call_id") as told:
        in_order(conversation(calls, results))
    assert told.value.status == 400


def test_a_call_without_a_result_is_refused() -> None:
    with pytest.raises(Refused, match="a call without a result"):
        in_order(conversation(["a"], [])[:2])


def test_pieces_of_a_stream() -> None:
    begin = head("x", "chat.completion.chunk", 0, "m")
    assert chunk(begin, {"content": "A"})["choices"][0]["delta"] == {"content": "A"}
    assert usage_chunk(begin, {"total_tokens": 3})["choices"] == []


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "refusal", "prefix"])
def test_a_key_of_a_message_that_the_policy_would_not_read_is_refused(key: str) -> None:
    said = {"role": "assistant", "content": "x"}
    with pytest.raises(Refused, match=f"does not read '{key}' of message 1"):
        read_turn_request(body(messages=[USER, {**said, key: "y"}]))
    for nothing in (None, "", False):
        assert read_turn_request(body(messages=[USER, {**said, key: nothing}])).messages
    assert read_chat(body(messages=[USER, {**said, key: "y"}, USER]))  # as its own answers have


@pytest.mark.parametrize("tool", [{"type": "web_search"}, {"type": "function", "function": {}}])
def test_a_tool_that_no_call_can_name_is_refused(tool: Any) -> None:
    with pytest.raises(Refused, match="tool 0 is no function with a name"):
        read_turn_request(body(tools=[tool]))
