"""Agents on OpenAI's Responses: their items become chains, and turns become items."""

import json
from typing import Any

from blackbox_parts import ONE_TURN, TOKENIZER, TWO_TURNS, authors, run_scripted
from responses_agents import REFUSED

from fieldcraft.extensions.external_envs.responses_requests import parse_responses_request
from fieldcraft.types import Status, Trajectory

END = TOKENIZER.eos_token
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Ada"}}\n</tool_call>'


def run_agent(name: str, turns: list[str], **budget: Any) -> Trajectory:
    done, _ = run_scripted(f"responses_agents:{name}", turns, max_context_tokens=4000, **budget)
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


def test_a_thought_a_text_and_calls_are_items_of_one_turn() -> None:
    turn = f"<think>\n Hm. \n</think>\n\nI look.\n{CALL}\n{CALL}"
    done = run_agent("calls_tools", [turn, "Ada"])
    assert authors(done) == [TWO_TURNS]
    assert done.segments[1].text == f"{turn}{END}"
    assert done.segments[2].text.count("<tool_response>\nfound {'query': 'Ada'}") == 2
    assert [call.arguments for call in done.calls] == [{"query": "Ada"}] * 2
    types = ["reasoning", "message", "function_call", "function_call"]
    assert json.loads(done.answer or "") == [types, "Ada", "completed"]


def test_a_thought_that_a_client_hides_stays_in_its_chain() -> None:
    done = run_agent("hides_thoughts", ["<think>Hm.</think>Ada", "Bo"])
    assert authors(done) == [TWO_TURNS]


def test_a_stream_has_the_events_of_the_interface() -> None:
    done = run_agent("streams", [f"<think>Hm.</think>Well. {CALL}"])
    names, response = json.loads(done.answer or "")
    added, part = "response.output_item.added", "response.content_part"
    finished = "response.output_item.done"
    assert names == [
        *("response.created", "response.in_progress"),
        *(added, f"{part}.added", "response.reasoning_text.delta"),
        *("response.reasoning_text.done", f"{part}.done", finished),
        *(added, f"{part}.added", "response.output_text.delta"),
        *("response.output_text.done", f"{part}.done", finished),
        *(added, "response.function_call_arguments.delta"),
        *("response.function_call_arguments.done", finished, "response.completed"),
    ]
    thought, message, call = response["output"]
    assert (thought["content"][0]["text"], message["content"][0]["text"]) == ("Hm.", "Well.")
    assert (call["name"], call["arguments"]) == ("search", '{"query": "Ada"}')
    assert response["usage"]["output_tokens"] == len(done.segments[1].ids)


def test_a_limit_makes_a_response_incomplete() -> None:
    done = run_agent("is_cut", ["a long answer that is cut"])
    assert json.loads(done.answer or "") == ["incomplete", 3]
    assert (authors(done), done.status) == ([ONE_TURN], Status.ANSWERED)


def test_requests_that_cannot_be_answered_are_refused_in_a_sentence() -> None:
    done, engine = run_scripted("responses_agents:is_refused", [], max_context_tokens=4000)
    for part, row in zip(REFUSED, json.loads(done.answer or ""), strict=True):
        assert row[0] == 400, row
        assert part in row[1]
    assert engine.prompts == []


def test_items_of_successive_turns_are_messages_in_order() -> None:
    call = {"type": "function_call", "call_id": "x", "name": "search", "arguments": "{}"}
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": "Who?"},
        {"type": "reasoning", "id": "r", "summary": [], "content": None},
        call,
        {"type": "function_call_output", "call_id": "x", "output": "Ada"},
        {"type": "message", "role": "assistant", "content": "One."},
        {"type": "message", "role": "assistant", "content": "Two."},
        {"role": "user", "content": "And?"},
    ]
    turn = parse_responses_request(json.dumps({"input": items}).encode()).to_turn_request()
    assert [(m.role, m.text, len(m.calls)) for m in turn.messages] == [
        ("developer", "Be brief.", 0),
        ("user", "Who?", 0),
        ("assistant", "", 1),
        ("tool", "Ada", 0),
        ("assistant", "One.", 0),
        ("assistant", "Two.", 0),
        ("user", "And?", 0),
    ]
