"""Agents on Anthropic's SDK: their requests become chains, and turns become messages."""

import json
from typing import Any

import pytest
from blackbox_parts import ONE_TURN, TOKENIZER, TWO_TURNS, authors, run_scripted

from fieldcraft.extensions.external_envs.anthropic_requests import (
    MessagesRequest,
    TokenCountRequest,
    parse_messages_request,
)
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.extensions.external_envs.request_fields import MESSAGES_FIELDS
from fieldcraft.types import Author, CallOutcome, Status, Trajectory

pytest.importorskip("anthropic", reason="the package anthropic is absent")
from anthropic.types import message_create_params
from anthropic.types.beta import message_create_params as beta_params
from anthropic_agents import REFUSED

END = TOKENIZER.eos_token
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Ada", "n": 1.0}}\n</tool_call>'
ASKED = {"max_tokens": 9, "messages": [{"role": "user", "content": "Who?"}]}


def run_agent(name: str, turns: list[str], **budget: Any) -> Trajectory:
    done, _ = run_scripted(f"anthropic_agents:{name}", turns, max_context_tokens=4000, **budget)
    return done


def test_a_conversation_is_rendered_as_chat_completions_are() -> None:
    done = run_agent("converses", ["Ada", "Bo"])
    assert authors(done) == [TWO_TURNS]
    assert (done.status, done.answer) == (Status.ANSWERED, "Bo")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "Ada"},
        {"role": "user", "content": "And then?"},
    ]
    whole = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert "".join(segment.text for segment in done.segments[:3]) == whole
    assert done.segments[1].text == f"Ada{END}"


def test_calls_results_and_errors_of_tools() -> None:
    done = run_agent("calls_tools", [f"I look.\n{CALL}", CALL, "Ada"])
    assert authors(done) == [[*TWO_TURNS, Author.TOOL, Author.POLICY]]
    assert '"name": "search"' in done.segments[0].text
    assert done.segments[1].text == f"I look.\n{CALL}{END}"
    assert "<tool_response>\nfound {'query': 'Ada', 'n': 1.0}" in done.segments[2].text
    outcomes = [(call.arguments, call.outcome) for call in done.calls]
    arguments = {"query": "Ada", "n": 1.0}
    assert outcomes == [(arguments, CallOutcome.FAILED), (arguments, CallOutcome.OK)]
    assert done.answer == "Ada"


def test_thoughts_are_blocks_and_return_as_they_were_sampled() -> None:
    first = f"<think>\n Hm? \n</think>\n\nI look.\n{CALL}"
    done = run_agent("thinks", [first, f"<think>So.</think>{CALL}", "<think>Never"])
    assert authors(done) == [[*TWO_TURNS, Author.TOOL, Author.POLICY]]
    assert done.segments[1].text == f"{first}{END}"
    *blocks, stop = json.loads(done.answer or "")
    assert [block["type"] for block in blocks] == [
        *("thinking", "text", "tool_use", "thinking", "tool_use", "thinking")
    ]
    assert [b["thinking"] for b in blocks if b["type"] == "thinking"] == ["Hm?", "", "Never"]
    assert (blocks[1]["text"], stop) == ("I look.", "end_turn")


def test_an_edited_thought_is_another_chain() -> None:
    done = run_agent("edits_a_thought", ["<think>\nHm.\n</think>\n\nAda", "Bo"])
    assert authors(done) == [ONE_TURN, ONE_TURN]
    assert "<think>\nNo.\n</think>\n\nAda" in done.segments[2].text


def test_a_stream_has_the_events_of_the_interface() -> None:
    done = run_agent("streams", [f"<think>Hm.</think>Well. {CALL}"])
    names, message = json.loads(done.answer or "")
    raw = [name for name in names if name not in ("thinking", "signature", "text", "input_json")]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    thought = [block[0], block[1], *block[1:]]  # a thought and its signature
    assert raw == ["message_start", *thought, *block, *block, "message_delta", "message_stop"]
    thought, text, call = message["content"]
    assert (thought["thinking"], text["text"]) == ("Hm.", "Well.")
    assert call["input"] == {"query": "Ada", "n": 1.0}
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["output_tokens"] == len(done.segments[1].ids)
    assert message["usage"]["input_tokens"] == len(done.segments[0].ids)


def test_a_stop_sequence_is_named() -> None:
    _, message = json.loads(run_agent("streams", ["Oslo! And"]).answer or "")
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "!")
    assert [block["text"] for block in message["content"]] == ["Oslo"]


def test_tokens_are_counted_without_a_turn_and_limits_are_kept() -> None:
    done = run_agent("counts_tokens", ["a long answer that is cut"])
    prompt = len(done.segments[0].ids)
    assert json.loads(done.answer or "") == [prompt, prompt, 3, "max_tokens"]
    assert (authors(done), done.status) == ([ONE_TURN], Status.ANSWERED)


@pytest.mark.parametrize(
    ("role", "block", "sentence"),
    [
        ("assistant", {"type": "tool_use", "name": "a", "input": {}}, "content.0.id: it is miss"),
        ("user", {"type": "text", "text": 5}, "content.0.text: it must be text, not 5"),
        ("user", {"type": "tool_result"}, "content.0.tool_use_id: it is missing"),
        (
            "user",
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]},
            "content.0.content: block 0 has the type 'image'",
        ),
    ],
)
def test_a_block_of_another_form_is_named(role: str, block: Any, sentence: str) -> None:
    messages = [{"role": role, "content": [block]}, *ASKED["messages"]]
    with pytest.raises(RequestRejectedError) as refused:
        parse_messages_request(MessagesRequest, json.dumps(ASKED | {"messages": messages}).encode())
    assert str(refused.value).startswith(f"messages.0.{sentence}")
    with pytest.raises(RequestRejectedError, match=r"^system: it must be text, not 5\.$"):
        parse_messages_request(MessagesRequest, json.dumps(ASKED | {"system": 5}).encode())


def test_the_base_url_of_a_function_is_good_as_it_is() -> None:
    assert run_agent("asks_a_function_url", ["Ada"]).answer == "Ada"


def test_errors_have_the_format_of_the_interface() -> None:
    done, engine = run_scripted("anthropic_agents:is_refused", [], max_context_tokens=4000)
    *refused, unknown, broken = json.loads(done.answer or "")
    for part, row in zip(REFUSED, refused, strict=True):
        assert row[:2] == [400, "invalid_request_error"], row
        assert part in row[2]
    assert unknown[:2] == [404, "not_found_error"]
    assert broken == [400, "invalid_request_error", "error"]
    assert engine.prompts == []


def test_a_budget_that_is_used_up_is_an_error_of_the_sdk() -> None:
    done = run_agent("converses", ["Ada", "Bo"], max_calls=1)
    assert (done.status, done.rewards) == (Status.TRUNCATED, {"environment": 0.0})


# -- fields ------------------------------------------------------------------------------------


def parse(**more: Any) -> MessagesRequest:
    return parse_messages_request(MessagesRequest, json.dumps({**ASKED, **more}).encode())


def test_the_table_has_every_field_of_the_sdk() -> None:
    plain = message_create_params.MessageCreateParamsBase.__annotations__
    beta = beta_params.MessageCreateParamsBase.__annotations__
    assert {*plain, *beta, "stream"} - MESSAGES_FIELDS.keys() == set()
    used = {key for key, field in MESSAGES_FIELDS.items() if field.used}
    assert used == MessagesRequest.model_fields.keys()


@pytest.mark.parametrize("key", [*MESSAGES_FIELDS, "best_answer"])
def test_other_fields_are_accepted_or_refused_with_a_remedy(key: str) -> None:
    field = MESSAGES_FIELDS.get(key)
    if field is not None and field.used:
        return
    if field is not None and field.ignored:
        assert parse(**{key: {"of": [1]}}).max_tokens == 9
        return
    for value in field.neutral if field is not None else ():
        parse(**{key: value})
    with pytest.raises(RequestRejectedError, match=f"does not support '{key}' with this value; "):
        parse(**{key: {"of": [1]}})


def test_successive_messages_of_a_role_are_one() -> None:
    parts = ["One.", "Two."]
    messages = [{"role": "user", "content": part} for part in parts]
    turn = parse(messages=messages).to_turn_request()
    assert [(m.role, m.text) for m in turn.messages] == [("user", "One.\nTwo.")]


def test_results_precede_the_text_of_their_message() -> None:
    call = {"type": "tool_use", "id": "x", "name": "search", "input": {"query": "Ada"}}
    result = {"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": "y"}]}
    messages = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": [{"type": "text", "text": "Hm."}, call]},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    turn = parse(messages=messages, tool_choice={"type": "none"}).to_turn_request()
    assert [(m.role, m.text) for m in turn.messages] == [
        *(("user", "Who?"), ("assistant", "Hm."), ("tool", "y"), ("user", "And?"))
    ]
    assert turn.messages[1].calls[0].function.arguments == '{"query": "Ada"}'
    assert turn.offered_tools == []
    assert TokenCountRequest.model_fields.keys() < MessagesRequest.model_fields.keys()
