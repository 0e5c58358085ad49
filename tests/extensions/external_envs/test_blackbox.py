"""External agents: the conversion of their requests to chains, and the handling of invalid ones."""

import asyncio
import json
import re
from typing import Any

import blackbox_agents
import numpy as np
import pytest
from blackbox_parts import ONE_TURN, TOKENIZER, TWO_TURNS, authors, run_scripted

from checkpoints import tiny_tokenizer
from families import FAMILIES
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.environments.base import isolate_failures
from fieldcraft.environments.guards import strip_location
from fieldcraft.extensions.external_envs.blackbox import BlackBoxEnvironment
from fieldcraft.extensions.external_envs.conversation_renderer import ConversationRenderer
from fieldcraft.extensions.external_envs.messages import parse_turn_request
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.records.chains import split_chains
from fieldcraft.types import Author, CallOutcome, Status, Task, UserError

END = TOKENIZER.eos_token


def test_a_conversation_that_goes_on_is_one_chain() -> None:
    done, _ = run_scripted("converses", ["Ada", "Bo", "Cy"])
    assert authors(done) == [[*TWO_TURNS, Author.TOOL, Author.POLICY]]
    assert [s.text for s in done.segments if s.author is Author.POLICY] == [
        f"{name}{END}" for name in ("Ada", "Bo", "Cy")
    ]
    assert (done.status, done.answer, done.well_formed) == (Status.ANSWERED, "Cy", True)
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada"}]
    messages.append({"role": "user", "content": "And then?"})
    whole = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert "".join(segment.text for segment in done.segments[:3]) == whole
    last = done.segments[4]
    assert f"Sure {END}?" in last.text
    assert last.ids.count(TOKENIZER.eos_token_id) == 1  # from the template, not from the agent


def test_an_edited_conversation_is_another_chain() -> None:
    done, _ = run_scripted("edits", ["Ada", "Bo"])
    assert authors(done) == [ONE_TURN, ONE_TURN]
    assert f"Short.{END}" in done.segments[2].text
    assert "Ada" in done.segments[2].text


def test_parts_of_an_agent_that_speak_at_once_are_chains_side_by_side() -> None:
    done, _ = run_scripted("asks_several", ["Ada", "Bo", "Cy"])
    first, second = split_chains(done)
    assert authors(done) == [TWO_TURNS, ONE_TURN]
    assert ("One?" in first[0].text, "Two?" in second[0].text) == (True, True)
    assert (done.rewards, done.answer) == ({"environment": 0.5}, "Bo")


def test_the_same_request_again_is_another_sample() -> None:
    done, _ = run_scripted("asks_again", ["Ada", "Bo"])
    assert authors(done) == [ONE_TURN, ONE_TURN]
    assert done.segments[0].ids == done.segments[2].ids


def test_calls_are_read_and_their_turn_stays_as_it_was_sampled() -> None:
    query = '{ "name": "search",  "arguments": {"query": "Ada"}}'  # not in the template's format
    calls = f"I look.\n<tool_call>\n{query}\n</tool_call>"
    done, _ = run_scripted("calls_tools", [calls, "Ada"])
    assert authors(done) == [TWO_TURNS]
    prompt, turn, result, _ = done.segments
    assert '"name": "search"' in prompt.text
    assert turn.text == f"{calls}{END}"
    assert 'search found {"query": "Ada"}' in result.text
    assert done.answer == "Ada"
    (call,) = done.calls
    found = ("search", {"query": "Ada"}, 'search found {"query": "Ada"}', CallOutcome.OK)
    assert (call.tool, call.arguments, call.observation, call.outcome) == found
    assert done.num_executed_calls == 1


def test_calls_count_once_and_only_with_a_result() -> None:
    query = '{"name": "search", "arguments": {"query": "Ada"}}'
    twice = f"<tool_call>\n{query}\n</tool_call>\n" * 2
    done, _ = run_scripted(
        "calls_on",
        [twice, f"<tool_call>\n{query}\n</tool_call>", "Ada", twice],
        max_context_tokens=4000,
    )
    assert [call.observation for call in done.calls] == ["0", "1", "2"]
    assert done.num_executed_calls == 3  # the last two had no result


@pytest.mark.parametrize(
    ("turn", "calls"),
    [
        ("<think>Or {}?", 0),
        ("<think>Or {}?</think>Ada", 0),
        ("<think>Hm.</think>{}", 1),
        ("{}", 1),
        ("{} <tool_call>{{", 0),
    ],
)
def test_which_calls_of_a_turn_are_meant(turn: str, calls: int) -> None:
    call = '<tool_call>{"name": "search", "arguments": {"query": "</think>"}}</tool_call>'
    text = turn.format(call)
    parsed = ConversationRenderer(make_dialect("hermes", TOKENIZER)).parse_turn(
        text, (), [{"type": "function"}]
    )
    assert len(parsed.calls) == calls
    assert calls or parsed.text == text


def test_results_are_shown_in_the_order_of_their_calls() -> None:
    calls = "\n".join(
        f'<tool_call>{{"name": "search", "arguments": {{"query": "{name}"}}}}</tool_call>'
        for name in ("Ada", "Bo")
    )
    done, _ = run_scripted("answers_out_of_order", [calls, "Cy"], max_context_tokens=4000)
    results = done.segments[2].text
    assert 0 < results.index('{"query": "Ada"}') < results.index('{"query": "Bo"}')
    assert [call.observation for call in done.calls] == ['{"query": "Ada"}', '{"query": "Bo"}']
    assert done.answer == (
        "The messages contain a result of an unknown call; give every result the tool_call_id of"
        " its call."
    )


TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
FOUND = {"role": "tool", "tool_call_id": "1", "content": " Ada "}
USER = {"role": "user", "content": "\n Who? "}


def prompt_and_template(
    family: str, messages: list[dict[str, Any]], tools: list[Any] | None = None
) -> tuple[str, str]:
    """Return the gateway's prompt, and the text that transformers renders for the same messages."""
    tokenizer = TOKENIZER if family == "tiny" else FAMILIES[family].tokenizer()
    request = parse_turn_request(json.dumps({"messages": messages, "tools": tools}).encode())
    ids = ConversationRenderer(make_dialect("search-r1", tokenizer)).encode_prompt(
        request.messages, tools or [], (), lambda ids, parsed: None
    )
    plain = [m | {"content": m["content"] or ""} for m in messages]
    for message in plain:
        if "tool_calls" in message:
            message["tool_calls"] = [{"function": {"name": "search", "arguments": {}}}]
    expected = tokenizer.apply_chat_template(
        plain, tools=tools, add_generation_prompt=True, tokenize=False
    )
    return tokenizer.decode(ids), str(expected)


@pytest.mark.parametrize(
    "family",
    ["tiny", "qwen2.5", "llama 3", "gemma 3", "glm 4", "mistral v11", "kimi k2", "hunyuan"],
)
@pytest.mark.parametrize("content", ["Me.", " Me.\n", "", " "])
def test_messages_stand_as_the_template_writes_them(family: str, content: str) -> None:
    messages = [USER, {"role": "assistant", "content": content}, USER]
    prompt, expected = prompt_and_template(family, messages)
    assert prompt == expected


@pytest.mark.parametrize("content", [None, "", "I look.", " I look. "])
def test_calls_of_others_stand_as_the_template_writes_them(content: str | None) -> None:
    called = {"role": "assistant", "content": content, "tool_calls": [CALL]}
    prompt, expected = prompt_and_template("tiny", [USER, called, FOUND, USER], [TOOL])
    assert prompt == expected


def test_what_a_template_leaves_out_is_refused() -> None:
    with pytest.raises(RequestRejectedError, match="cannot render tools"):
        prompt_and_template("llama 3", [USER], [TOOL])
    called = {"role": "assistant", "content": "I look.", "tool_calls": [CALL]}
    with pytest.raises(RequestRejectedError, match="does not render these messages unchanged"):
        prompt_and_template("llama 3", [USER, called, FOUND])


@pytest.mark.parametrize("family", ["tiny", "qwen3", "glm 4.6", "deepseek r1"])
@pytest.mark.parametrize(
    "content", ["<think>\nHm.\n</think>\n\nMe.", "Hm.</think>Me.", "<think>Hm."]
)
def test_thoughts_of_others_stand_as_the_template_writes_them(family: str, content: str) -> None:
    prompt, expected = prompt_and_template(
        family, [USER, {"role": "assistant", "content": content}, USER]
    )
    assert prompt == expected.removesuffix("<think>\n")


def test_functions_of_older_clients_are_calls() -> None:
    done, _ = run_scripted("speaks_as_before", ["Ada"], max_context_tokens=4000)
    assert '{"query": "Ada"}' in done.segments[0].text
    assert "<tool_response>\nShe is.\n</tool_response>" in done.segments[0].text


def test_requests_as_others_write_them() -> None:
    done, _ = run_scripted("asks_as_others_do", ["Ada", "Bo", "Cy", "Di"])
    assert json.loads(done.answer or "") == ["Ada", "Bo", 0, 1, 200, 404]


def test_calls_that_cannot_be_read_are_text() -> None:
    done, _ = run_scripted("calls_tools", ["<tool_call>\n{\n</tool_call>"])
    assert done.status is Status.ERROR  # this agent expected a call
    assert "tool_calls" in done.error


def test_a_draft_in_a_thought_is_no_call_and_a_tag_in_a_string_ends_none() -> None:
    draft = '<think>Or <tool_call>{"name": "search", "arguments": {}}</tool_call>?</think>'
    query = '{"name": "search", "arguments": {"query": "</tool_call><think>"}}'
    done, _ = run_scripted(
        "calls_tools",
        [f"{draft}<tool_call>{query}</tool_call>", f"{draft}Ada"],
        max_context_tokens=4000,
    )
    assert [call.arguments for call in done.calls] == [{"query": "</tool_call><think>"}]
    assert done.answer == f"{draft}Ada"


def test_a_reward_may_be_posted() -> None:
    done, _ = run_scripted("posts", ["Ada"])
    assert (done.rewards, done.answer) == ({"environment": 0.75}, "Ada")


def test_agents_in_threads_streams_and_stop_strings() -> None:
    done, _ = run_scripted("plainly", ["Oslo! And Rome"])
    assert (done.rewards, done.policy_turns) == ({"environment": 1.0}, ["Oslo!"])


def test_who_does_not_wait_for_an_answer_ends_all_the_same() -> None:
    done, _ = run_scripted("leaves", ["Ada"], slow=True)
    assert (done.segments, done.rewards) == ([], {"environment": 1.0})
    assert done.status is Status.NO_ANSWER


@pytest.mark.parametrize(
    ("agent", "turns", "budget", "settings"),
    [
        ("converses", ["Ada", "Bo", "Cy"], {"max_calls": 2}, {}),
        ("converses", ["Ada", "Bo", "Cy"], {}, {"max_turns": 2}),
        ("converses", ["Ada", "Bo", "Cy"], {"max_context_tokens": 70}, {}),
    ],
)
def test_the_budget_ends_a_rollout(
    agent: str, turns: list[str], budget: Any, settings: Any
) -> None:
    done, _ = run_scripted(agent, turns, settings, **budget)
    assert done.status is Status.TRUNCATED
    assert 1 <= len(done.policy_turns) <= 2
    assert done.rewards == {"environment": 0.0}
    assert not done.well_formed


def test_clients_recognise_the_end_of_a_budget() -> None:
    """A client that finds the code or the words of a full context compacts the conversation, and
    one that retries status 400 ends after status 404."""
    done, _ = run_scripted("goes_on", ["Ada"], max_calls=1)
    assert done.answer is not None
    used_up = "the rollout has used all of its 1 turns."
    for status, error in json.loads(done.answer):
        assert (status, error["message"]) == (404, used_up)
    done, _ = run_scripted("goes_on", [], max_context_tokens=9)
    assert done.answer is not None
    chat, responses, messages = json.loads(done.answer)
    for status, error in (chat, responses, messages):
        assert (status, error["type"]) == (400, "invalid_request_error")
        assert re.match(
            r"the prompt is too long: \d+ tokens leave none for an answer within the"
            " context length of 9 tokens.",
            error["message"],
        )
    assert chat[1]["code"] == responses[1]["code"] == "context_length_exceeded"


def test_a_turn_that_is_cut_is_truncated() -> None:
    done, _ = run_scripted("posts", ["a long answer that is cut"], max_turn_tokens=4)
    assert (done.status, len(done.segments[1].ids)) == (Status.TRUNCATED, 4)
    assert done.rewards == {"environment": 0.75}


def test_a_limit_of_the_agents_own_truncates_nothing() -> None:
    done, _ = run_scripted("wants_little", ["a long answer that is cut"])
    assert (done.status, len(done.segments[1].ids)) == (Status.ANSWERED, 3)


@pytest.mark.parametrize(
    ("agent", "settings", "cause"),
    [
        ("fails", {}, "RuntimeError: no plan"),
        ("sleeps", {"timeout_seconds": 0.2}, "did not finish within 0.2 s"),
        ("returns_much", {}, "not a reward, an answer or None"),
    ],
)
def test_a_bad_agent_is_an_error_of_its_rollout(agent: str, settings: Any, cause: str) -> None:
    done, _ = run_scripted(agent, ["Ada"], settings)
    assert done.status is Status.ERROR
    assert cause in done.error
    assert done.rewards == {}


def test_what_the_engine_raises_is_the_cause_whatever_the_agent_makes_of_it() -> None:
    done, _ = run_scripted("fails", ["Ada"], broken=FloatingPointError("not finite"))
    assert done.status is Status.ERROR
    assert strip_location(done.error) == "FloatingPointError: not finite"
    with pytest.raises(UserError, match="raise max_len"):
        run_scripted("fails", ["Ada"], broken=UserError("raise max_len"))


def test_requests_that_cannot_be_answered_are_refused_in_a_sentence() -> None:
    done, engine = run_scripted("lies", [])
    assert (done.error, engine.prompts) == ("", [])
    rows = (done.answer or "").splitlines()
    assert len(rows) == 5
    for part, sentence in zip(("messages", "'n'", "'logprobs'", "content", END), rows, strict=True):
        assert part in sentence


def test_settings_that_name_no_agent() -> None:
    with pytest.raises(UserError, match="needs the setting 'agent'"):
        BlackBoxEnvironment()
    with pytest.raises(UserError, match=r"write environment: \{name: command, run: "):
        BlackBoxEnvironment(command=["c"])
    with pytest.raises(UserError, match="not a name of the form module:name"):
        BlackBoxEnvironment("alone")
    with pytest.raises(UserError, match="a function with the parameters task and base_url"):
        BlackBoxEnvironment("blackbox_agents:user")
    bare = tiny_tokenizer()
    bare.chat_template = None

    async def open_it() -> None:
        dialect = make_dialect("autocoa", bare)
        async with isolate_failures(
            BlackBoxEnvironment("blackbox_agents:posts"), dialect, BudgetConfig()
        ):
            pass

    with pytest.raises(UserError, match="needs a model with a chat template"):
        asyncio.run(open_it())


@pytest.mark.parametrize("returned", [1, True, 1.0, np.float32(1), np.int64(1), np.bool_(True)])
def test_any_returned_number_is_a_reward(returned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blackbox_agents, "returns_much", lambda task, base_url: returned)
    done, _ = run_scripted("returns_much", [])
    assert done.rewards == {"environment": 1.0}


class AsyncAgent:
    async def __call__(self, task: Task, base_url: str) -> str:
        return task.question


@pytest.mark.parametrize(
    "agent", [AsyncAgent(), lambda task, base_url: AsyncAgent()(task, base_url)]
)
def test_an_agent_may_hide_that_it_is_async(agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blackbox_agents, "returns_much", agent)
    assert run_scripted("returns_much", [])[0].answer == "Who?"


@pytest.mark.parametrize("reward", ["nan", "inf", "-inf", "1e300"])
def test_what_is_no_reward_ends_its_rollout_alone(reward: str) -> None:
    done, _ = run_scripted("pays", [], task=Task("q", reward, ()))
    assert (done.status, done.rewards) == (Status.ERROR, {})
    assert "EnvironmentContractError: its reward is " in done.error
