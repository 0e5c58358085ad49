"""Agents of others: how their requests become chains, and what becomes of bad ones."""

import asyncio
import json
import os
import select
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from blackbox_parts import ONE_TURN, TOKENIZER, TWO_TURNS, authors, play

from checkpoints import tiny_tokenizer
from families import FAMILIES
from fieldcraft.config.sections import Limits
from fieldcraft.dialects import get_dialect
from fieldcraft.envs.defects import without_place
from fieldcraft.gateway.blackbox import BlackBox
from fieldcraft.gateway.messages import read_turn_request
from fieldcraft.gateway.refusals import Refused
from fieldcraft.gateway.scribe import Scribe
from fieldcraft.records.chains import chains
from fieldcraft.rollout.environments import opened
from fieldcraft.types import Author, Outcome, Status, Task, UserError
from virtual_time import Clock

END = TOKENIZER.eos_token


def test_a_conversation_that_goes_on_is_one_chain() -> None:
    done, _ = play("converses", ["Ada", "Bo", "Cy"])
    assert authors(done) == [[*TWO_TURNS, Author.TOOL, Author.POLICY]]
    assert [s.text for s in done.segments if s.author is Author.POLICY] == [
        f"{name}{END}" for name in ("Ada", "Bo", "Cy")
    ]
    assert (done.status, done.answer, done.well_formed) == (Status.ANSWERED, "Cy", True)
    asked = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada"}]
    asked.append({"role": "user", "content": "And then?"})
    whole = TOKENIZER.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    assert "".join(segment.text for segment in done.segments[:3]) == whole
    last = done.segments[4]
    assert f"Sure {END}?" in last.text
    assert last.ids.count(TOKENIZER.eos_token_id) == 1  # of the template, not of the agent


def test_an_edited_conversation_is_another_chain() -> None:
    done, _ = play("edits", ["Ada", "Bo"])
    assert authors(done) == [ONE_TURN, ONE_TURN]
    assert f"Short.{END}" in done.segments[2].text
    assert "Ada" in done.segments[2].text


def test_parts_of_an_agent_that_speak_at_once_are_chains_side_by_side() -> None:
    done, _ = play("asks_several", ["Ada", "Bo", "Cy"])
    first, second = chains(done)
    assert authors(done) == [TWO_TURNS, ONE_TURN]
    assert ("One?" in first[0].text, "Two?" in second[0].text) == (True, True)
    assert (done.rewards, done.answer) == ({"environment": 0.5}, "Bo")


def test_the_same_request_again_is_another_sample() -> None:
    done, _ = play("asks_again", ["Ada", "Bo"])
    assert authors(done) == [ONE_TURN, ONE_TURN]
    assert done.segments[0].ids == done.segments[2].ids


def test_calls_are_read_and_their_turn_stays_as_it_was_sampled() -> None:
    query = '{ "name": "search",  "arguments": {"query": "Ada"}}'  # not as a template writes it
    calls = f"I look.\n<tool_call>\n{query}\n</tool_call>"
    done, _ = play("calls_tools", [calls, "Ada"])
    assert authors(done) == [TWO_TURNS]
    prompt, turn, result, _ = done.segments
    assert '"name": "search"' in prompt.text
    assert turn.text == f"{calls}{END}"
    assert 'search found {"query": "Ada"}' in result.text
    assert done.answer == "Ada"
    (call,) = done.calls
    found = ("search", {"query": "Ada"}, 'search found {"query": "Ada"}', Outcome.OK)
    assert (call.tool, call.arguments, call.observation, call.outcome) == found
    assert done.executed_calls == 1


def test_calls_count_once_and_only_with_a_result() -> None:
    query = '{"name": "search", "arguments": {"query": "Ada"}}'
    twice = f"<tool_call>\n{query}\n</tool_call>\n" * 2
    done, _ = play(
        "calls_on", [twice, f"<tool_call>\n{query}\n</tool_call>", "Ada", twice], total_tokens=4000
    )
    assert [call.observation for call in done.calls] == ["0", "1", "2"]
    assert done.executed_calls == 3  # the last two had no result


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
    says = Scribe(get_dialect("hermes", TOKENIZER)).read(text, (), [{"type": "function"}])
    assert len(says.calls) == calls
    assert calls or says.text == text


def test_results_are_shown_in_the_order_of_their_calls() -> None:
    calls = "\n".join(
        f'<tool_call>{{"name": "search", "arguments": {{"query": "{name}"}}}}</tool_call>'
        for name in ("Ada", "Bo")
    )
    done, _ = play("answers_out_of_order", [calls, "Cy"], total_tokens=4000)
    results = done.segments[2].text
    assert 0 < results.index('{"query": "Ada"}') < results.index('{"query": "Bo"}')
    assert [call.observation for call in done.calls] == ['{"query": "Ada"}', '{"query": "Bo"}']
    assert done.answer == (
        "The messages hold a result of an unknown call; give every result the tool_call_id of its"
        " call."
    )


TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
FOUND = {"role": "tool", "tool_call_id": "1", "content": " Ada "}
USER = {"role": "user", "content": "\n Who? "}


def prompt_and_template(
    family: str, messages: list[dict[str, Any]], tools: list[Any] | None = None
) -> tuple[str, str]:
    """What the gateway shows the policy, and what transformers writes for the same messages."""
    tokenizer = TOKENIZER if family == "tiny" else FAMILIES[family].tokenizer()
    request = read_turn_request(json.dumps({"messages": messages, "tools": tools}).encode())
    ids = Scribe(get_dialect("search-r1", tokenizer)).prompt(
        request.messages, tools or [], (), lambda ids, says: None
    )
    plain = [m | {"content": m["content"] or ""} for m in messages]
    for message in plain:
        if "tool_calls" in message:
            message["tool_calls"] = [{"function": {"name": "search", "arguments": {}}}]
    wanted = tokenizer.apply_chat_template(
        plain, tools=tools, add_generation_prompt=True, tokenize=False
    )
    return tokenizer.decode(ids), str(wanted)


@pytest.mark.parametrize(
    "family",
    ["tiny", "qwen2.5", "llama 3", "gemma 3", "glm 4", "mistral v11", "kimi k2", "hunyuan"],
)
@pytest.mark.parametrize("content", ["Me.", " Me.\n", "", " "])
def test_messages_stand_as_the_template_writes_them(family: str, content: str) -> None:
    messages = [USER, {"role": "assistant", "content": content}, USER]
    shown, wanted = prompt_and_template(family, messages)
    assert shown == wanted


@pytest.mark.parametrize("content", [None, "", "I look.", " I look. "])
def test_calls_of_others_stand_as_the_template_writes_them(content: str | None) -> None:
    called = {"role": "assistant", "content": content, "tool_calls": [CALL]}
    shown, wanted = prompt_and_template("tiny", [USER, called, FOUND, USER], [TOOL])
    assert shown == wanted


def test_what_a_template_leaves_out_is_refused() -> None:
    with pytest.raises(Refused, match="does not show tools"):
        prompt_and_template("llama 3", [USER], [TOOL])
    called = {"role": "assistant", "content": "I look.", "tool_calls": [CALL]}
    with pytest.raises(Refused, match="does not show these messages"):
        prompt_and_template("llama 3", [USER, called, FOUND])


@pytest.mark.parametrize("family", ["tiny", "qwen3", "glm 4.6", "deepseek r1"])
@pytest.mark.parametrize(
    "content", ["<think>\nHm.\n</think>\n\nMe.", "Hm.</think>Me.", "<think>Hm."]
)
def test_thoughts_of_others_stand_as_the_template_writes_them(family: str, content: str) -> None:
    shown, wanted = prompt_and_template(
        family, [USER, {"role": "assistant", "content": content}, USER]
    )
    assert shown == wanted.removesuffix("<think>\n")


def test_functions_of_older_clients_are_calls() -> None:
    done, _ = play("speaks_as_before", ["Ada"], total_tokens=4000)
    assert '{"query": "Ada"}' in done.segments[0].text
    assert "<tool_response>\nShe is.\n</tool_response>" in done.segments[0].text


def test_requests_as_others_write_them() -> None:
    done, _ = play("asks_as_others_do", ["Ada", "Bo", "Cy", "Di"])
    assert json.loads(done.answer or "") == ["Ada", "Bo", 0, 1, 200, 404]


def test_calls_that_cannot_be_read_are_text() -> None:
    done, _ = play("calls_tools", ["<tool_call>\n{\n</tool_call>"])
    assert done.status is Status.ERROR  # this agent expected a call
    assert "tool_calls" in done.error


def test_a_draft_in_a_thought_is_no_call_and_a_tag_in_a_string_ends_none() -> None:
    draft = '<think>Or <tool_call>{"name": "search", "arguments": {}}</tool_call>?</think>'
    query = '{"name": "search", "arguments": {"query": "</tool_call><think>"}}'
    done, _ = play(
        "calls_tools", [f"{draft}<tool_call>{query}</tool_call>", f"{draft}Ada"], total_tokens=4000
    )
    assert [call.arguments for call in done.calls] == [{"query": "</tool_call><think>"}]
    assert done.answer == f"{draft}Ada"


def test_a_reward_may_be_posted() -> None:
    done, _ = play("posts", ["Ada"])
    assert (done.rewards, done.answer) == ({"environment": 0.75}, "Ada")


def test_agents_in_threads_streams_and_stop_strings() -> None:
    done, _ = play("plainly", ["Oslo! And Rome"])
    assert (done.rewards, done.policy_texts) == ({"environment": 1.0}, ["Oslo!"])


def test_who_does_not_wait_for_an_answer_ends_all_the_same() -> None:
    done, _ = play("leaves", ["Ada"], slow=True)
    assert (done.segments, done.rewards) == ([], {"environment": 1.0})
    assert done.status is Status.NO_ANSWER


@pytest.mark.parametrize(
    ("agent", "turns", "budget", "settings"),
    [
        ("converses", ["Ada", "Bo", "Cy"], {"max_calls": 2}, {}),
        ("converses", ["Ada", "Bo", "Cy"], {}, {"max_turns": 2}),
        ("converses", ["Ada", "Bo", "Cy"], {"total_tokens": 70}, {}),
    ],
)
def test_the_budget_ends_a_rollout(
    agent: str, turns: list[str], budget: Any, settings: Any
) -> None:
    done, _ = play(agent, turns, settings, **budget)
    assert done.status is Status.TRUNCATED
    assert 1 <= len(done.policy_texts) <= 2
    assert done.rewards == {"environment": 0.0}
    assert not done.well_formed


def test_a_turn_that_is_cut_is_truncated() -> None:
    done, _ = play("posts", ["a long answer that is cut"], turn_tokens=4)
    assert (done.status, len(done.segments[1].ids)) == (Status.TRUNCATED, 4)
    assert done.rewards == {"environment": 0.75}


def test_a_limit_of_the_agents_own_truncates_nothing() -> None:
    done, _ = play("wants_little", ["a long answer that is cut"])
    assert (done.status, len(done.segments[1].ids)) == (Status.ANSWERED, 3)


@pytest.mark.parametrize(
    ("agent", "settings", "cause"),
    [
        ("fails", {}, "RuntimeError: no plan"),
        ("sleeps", {"timeout_seconds": 0.2}, "did not end within 0.2 s"),
        ("returns_much", {}, "not a reward, an answer or None"),
    ],
)
def test_a_bad_agent_is_an_error_of_its_rollout(agent: str, settings: Any, cause: str) -> None:
    done, _ = play(agent, ["Ada"], settings)
    assert done.status is Status.ERROR
    assert cause in done.error
    assert done.rewards == {}


def test_what_the_engine_raises_is_the_cause_whatever_the_agent_makes_of_it() -> None:
    done, _ = play("fails", ["Ada"], broken=FloatingPointError("not finite"))
    assert done.status is Status.ERROR
    assert without_place(done.error) == "FloatingPointError: not finite"
    with pytest.raises(UserError, match="raise max_len"):
        play("fails", ["Ada"], broken=UserError("raise max_len"))


def test_requests_that_cannot_be_answered_are_refused_in_a_sentence() -> None:
    done, engine = play("lies", [])
    assert engine.prompts == []
    told = (done.answer or "").splitlines()
    assert len(told) == 5
    for part, sentence in zip(("messages", "'n'", "'logprobs'", "content", END), told, strict=True):
        assert part in sentence


PROGRAM = """\
import json, os, sys, urllib.request
task = json.load(sys.stdin)
body = {"model": "policy", "messages": [{"role": "user", "content": task["question"]}]}
asked = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(), {"Content-Type": "application/json"},
)
print(json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"].upper())
"""


def test_a_program_of_any_language(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    done, _ = play(None, ["Ada"], {"command": [sys.executable, str(tmp_path / "agent.py")]})
    assert (done.answer, done.policy_texts) == ("ADA", [f"Ada{END}"])
    broken, _ = play(None, [], {"command": [sys.executable, "-c", "raise SystemExit('no plan')"]})
    assert "the agent ended with 1: no plan" in broken.error


def test_settings_that_name_no_agent() -> None:
    for settings in ({}, {"agent": "a:b", "command": ["c"]}):
        with pytest.raises(UserError, match="needs one of agent and command"):
            BlackBox(**settings)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="write agent as module:name"):
        BlackBox("alone")
    with pytest.raises(UserError, match="a function of a task and a base_url"):
        BlackBox("blackbox_agents:user")
    bare = tiny_tokenizer()
    bare.chat_template = None

    async def open_it() -> None:
        dialect = get_dialect("autocoa", bare)
        async with opened(BlackBox("blackbox_agents:posts"), dialect, Limits()):
            pass

    with pytest.raises(UserError, match="needs a model with a chat template"):
        asyncio.run(open_it())


def test_its_task_is_json_for_a_program() -> None:
    done, _ = play(None, [], {"command": [sys.executable, "-c", "print(input())"]})
    assert json.loads(done.answer or "") == {
        "id": "q",
        "question": "Who?",
        "answers": ["Ada"],
        "meta": {},
    }


@pytest.mark.parametrize("reward", ["nan", "inf", "-inf", "1e300"])
def test_what_is_no_reward_ends_its_rollout_alone(reward: str) -> None:
    done, _ = play("pays", [], task=Task("q", reward, ()))
    assert (done.status, done.rewards) == (Status.ERROR, {})
    assert "EnvironmentDefect: its reward is " in done.error


LEAVES_A_PROCESS = """\
import os, subprocess, sys
held = os.open(sys.argv[1], os.O_WRONLY)
subprocess.Popen(["sleep", "1000"], pass_fds=[held])
os.write(held, b"x")
print("done")
"""


@pytest.mark.parametrize("ends", ["", "import time; time.sleep(1000)"])
def test_what_a_program_has_started_ends_with_its_rollout(tmp_path: Path, ends: str) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    clock = Clock()

    def let_time_pass() -> None:
        """When the process is there."""
        with held.open("rb") as pipe:
            assert pipe.read(1) == b"x"
        if ends:
            clock.jump(600)

    watching = threading.Thread(target=let_time_pass)
    watching.start()
    command = [sys.executable, "-c", LEAVES_A_PROCESS + ends, str(held)]
    done, _ = play(None, [], {"command": command, "timeout_seconds": 600}, run=clock.run)
    watching.join()
    assert (done.answer, done.status) == (
        (None, Status.ERROR) if ends else ("done", Status.NO_ANSWER)
    )
    ready, _, _ = select.select([reader], [], [], 300)
    assert ready, "a process still holds it open"
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_program_that_prints_without_end_is_ended() -> None:
    code = "import sys\nfor _ in range(40): sys.std{}.write('a' * 2**16)\n"
    for more, told in (
        (code.format("out") + "while True: pass", "the agent printed more than 1048576 bytes"),
        (code.format("err") + "raise SystemExit('bye')", "bye"),
    ):
        done, _ = play(None, [], {"command": [sys.executable, "-c", more]})
        assert done.status is Status.ERROR
        assert done.error.endswith(told)
        assert len(done.error) < 300
