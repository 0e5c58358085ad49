"""OpenAI's chat completions, as both front ends parse and write them."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.extensions.external_envs.messages import (
    order_results,
    parse_turn_request,
    to_assistant_message,
)
from fieldcraft.extensions.external_envs.protocol import (
    ChatMessage,
    make_chunk,
    make_head,
    make_usage_chunk,
)
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.extensions.serving.requests import parse_chat_request, parse_responses_request

USER: dict[str, Any] = {"role": "user", "content": "Who?"}
READERS = pytest.mark.parametrize("read", [parse_turn_request, parse_chat_request])


def body(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **more}).encode()


@READERS
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
def test_a_stream_says_what_was_used_only_where_it_is_asked(read: Any, options: Any) -> None:
    request = read(body(stream=True, stream_options=options))
    assert request.stream
    assert request.include_usage is bool(options and options["include_usage"])


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
    with pytest.raises(RequestRejectedError, match=place):
        read(body(messages=[message]))


TEXTS = ["text", "input_text", "output_text"]


@READERS
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"type": "image_url", "image_url": {"url": "x"}}], "part 0 has the type 'image_url'"),
        ([{"type": "text", "text": "a"}, {"type": "input_audio"}], "part 1 has the type 'input_au"),
        (["a"], "part 0 has the type None, but only text is supported: send its text as a part"),
        ([{"type": "text"}], "part 0 has no text; write it as 'text'"),
        ({"text": "a"}, "a content must be text, or a list of parts with text"),
        (3, "a content must be text, or a list of parts with text"),
    ],
)
def test_what_is_no_text_is_refused_with_the_remedy(read: Any, content: Any, message: str) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        read(body(messages=[USER, {"role": "user", "content": content}]))
    sentence = str(refused.value)
    assert sentence.startswith(f"messages.1.content: {message}")
    assert sentence.endswith(".")
    assert sentence.count(". ") == 0


@pytest.mark.parametrize(
    "given", [3, {"role": "user"}, [3], [{"type": "image"}], [{"role": "x", "content": "a"}]]
)
def test_items_of_another_form_are_refused_in_words_of_a_user(given: Any) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        parse_responses_request(json.dumps({"model": "m", "input": given}).encode())
    message = r"input(\.0)?(\.\w+)?: ((an input|it) must be|it is missing|item 0 has the type)"
    assert re.match(message, str(refused.value))


@READERS
@given(pieces=st.lists(st.tuples(st.sampled_from(TEXTS), st.text(min_size=1)), min_size=1))
def test_parts_with_text_are_read(read: Any, pieces: list[tuple[str, str]]) -> None:
    parts = [{"type": kind, "text": text} for kind, text in pieces]
    text = "\n".join(text for _, text in pieces)
    if text.strip():
        assert read(body(messages=[{"role": "user", "content": parts}]))


@given(arguments=st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.booleans())))
def test_arguments_may_be_an_object_and_are_the_text_of_it(arguments: dict[str, Any]) -> None:
    """The text equals the text of the policy's turn, so the turn is recognised."""
    for value in (arguments, json.dumps(arguments)):
        call = {"id": "a", "function": {"name": "f", "arguments": value}}
        message = ChatMessage.model_validate({"role": "assistant", "tool_calls": [call]})
        assert to_assistant_message(message).calls == (("f", json.dumps(arguments)),)


@pytest.mark.parametrize("arguments", [[1], 3, True])
def test_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    calls = [{"id": "a", "function": {"name": "f", "arguments": arguments}}]
    with pytest.raises(
        RequestRejectedError, match="arguments of a call must be a JSON object, or its text"
    ):
        parse_turn_request(body(messages=[USER, {"role": "assistant", "tool_calls": calls}]))


def test_a_served_agent_refuses_calls_of_others() -> None:
    call = {"name": "search", "arguments": "{}"}
    for message in (
        {"role": "assistant", "content": "x", "function_call": call},
        {"role": "assistant", "tool_calls": [{"function": call}]},
        {"role": "function", "name": "search", "content": "x"},
    ):
        with pytest.raises(RequestRejectedError, match="runs its own tools"):
            parse_chat_request(body(messages=[USER, message, USER]))


def conversation(ids: list[str], results: list[str]) -> list[ChatMessage]:
    calls = [{"id": i, "function": {"name": "f", "arguments": "{}"}} for i in ids]
    messages = [USER, {"role": "assistant", "tool_calls": calls}]
    messages += [{"role": "tool", "tool_call_id": i, "content": f"of {i}"} for i in results]
    return [ChatMessage.model_validate(message) for message in (*messages, USER)]


@given(st.permutations(["a", "b", "c"]), st.permutations(["a", "b", "c"]))
def test_results_are_in_the_order_of_their_calls(calls: list[str], results: list[str]) -> None:
    found = order_results(conversation(calls, results))
    assert [message.text for message in found[2:5]] == [f"of {i}" for i in calls]
    assert found == conversation(calls, calls)


@given(st.lists(st.sampled_from("ab"), max_size=3), st.lists(st.sampled_from("abc"), max_size=4))
def test_results_of_no_call_are_refused(calls: list[str], results: list[str]) -> None:
    if sorted(calls) == sorted(results) and len({*calls}) == len(calls):
        return
    with pytest.raises(RequestRejectedError, match=r"messages contain .* tool_call_id") as raised:
        order_results(conversation(calls, results))
    assert raised.value.status == 400


def test_a_call_without_a_result_is_refused() -> None:
    with pytest.raises(RequestRejectedError, match="a call without a result"):
        order_results(conversation(["a"], [])[:2])


def test_pieces_of_a_stream() -> None:
    begin = make_head("x", "chat.completion.chunk", 0, "m")
    assert make_chunk(begin, {"content": "A"})["choices"][0]["delta"] == {"content": "A"}
    assert make_usage_chunk(begin, {"total_tokens": 3})["choices"] == []


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "refusal", "prefix"])
def test_a_key_of_a_message_that_the_policy_would_not_read_is_refused(key: str) -> None:
    message = {"role": "assistant", "content": "x"}
    with pytest.raises(RequestRejectedError, match=f"'{key}' of message 1 is not passed"):
        parse_turn_request(body(messages=[USER, {**message, key: "y"}]))
    for nothing in (None, "", False):
        assert parse_turn_request(body(messages=[USER, {**message, key: nothing}])).messages
    assert parse_chat_request(
        body(messages=[USER, {**message, key: "y"}, USER])
    )  # like the agent's own answers


@pytest.mark.parametrize("tool", [{"type": "web_search"}, {"type": "function", "function": {}}])
def test_a_tool_that_no_call_can_name_is_refused(tool: Any) -> None:
    with pytest.raises(RequestRejectedError, match="tool 0 is not a function with a name"):
        parse_turn_request(body(tools=[tool]))
