"""Tools whose names differ between questions."""

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from fieldcraft.config.choices import ToolConfig, parse_signature
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import (
    DemonstrationEncoder,
    encode_demonstration,
)
from fieldcraft.dialects.tool_names import ToolNameMap, add_name_variants
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment, run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.tools.base import tool
from fieldcraft.tools.factory import apply_tool_config
from fieldcraft.types import (
    Answer,
    ArgumentError,
    CallFault,
    CallOutcome,
    CallRecord,
    DemoStep,
    MalformedCall,
    Observation,
    Task,
    Thought,
    ToolCall,
    Trajectory,
    UserError,
)

SEEN = ["find(text, most)", "look_up(about)"]
UNSEEN = ["ask(of)"]
TASK = Task("t4", "who?", ())  # whose draw is find(text, most)
OTHER = Task("t0", "who?", ())  # look_up(about)
TESTED = Task("t4", "who?", (), {"called": "unseen"})
DIALECT = make_dialect("hermes", tiny_tokenizer(), "")


@tool
async def search(query: str, topk: int = 1) -> str:
    """Search.

    Args:
        query: what to look for.
        topk: how many.
    """
    return f"{topk} for {query}"


@tool
async def now() -> str:
    """The time."""
    return "noon"


NAMED = apply_tool_config(search, ToolConfig(name="search", names=SEEN, eval_names=UNSEEN))
TOOLS = [NAMED.schema, now.schema]
STEPS: list[DemoStep] = [
    Thought("I look."),
    ToolCall("search", {"query": "Kalo", "topk": 2}),
    Observation("2 for Kalo"),
    ToolCall("now", {}),
    Observation("noon"),
    Answer("Oslo"),
]


# -- signatures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("find", "find", ()),
        (" find ( text ,most ) ", "find", ("text", "most")),
        ("look-up2(a_b)", "look-up2", ("a_b",)),
    ],
)
def test_signatures(text: str, name: str, arguments: tuple[str, ...]) -> None:
    assert parse_signature(text) == (name, arguments)


@pytest.mark.parametrize("text", ["", "f()", "f(a", "f(a,)", "find a", "f(a)(b)", "f(a b)"])
def test_what_is_no_signature(text: str) -> None:
    with pytest.raises(ValueError, match="is not a tool signature: write it as in find or find"):
        parse_signature(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("find(a, b, c)", "the tool 'search' has 2: give new names to query, topk, in"),
        ("find(topk)", "two arguments 'topk'"),
    ],
)
def test_names_must_fit_the_tool(text: str, sentence: str) -> None:
    for trained, unseen in (([text], []), ([], [text])):
        with pytest.raises(UserError, match=sentence):
            add_name_variants(search.schema, trained, unseen)
    with pytest.raises(ValueError, match="two arguments of the same name"):
        parse_signature("find(a, a)")


# -- one question ------------------------------------------------------------------------------


def describe_schemas(task: Task) -> list[tuple[str, list[str], list[str]]]:
    """Return each tool's name, arguments and required arguments, as the prompt shows them."""
    functions = [schema["function"] for schema in ToolNameMap(task, TOOLS).schemas]
    return [
        (f["name"], [*f["parameters"]["properties"]], f["parameters"].get("required", []))
        for f in functions
    ]


def test_each_question_has_one_of_the_names() -> None:
    clock: tuple[str, list[str], list[str]] = ("now", [], [])
    assert describe_schemas(TASK) == [("find", ["text", "most"], ["text"]), clock]
    assert describe_schemas(OTHER) == [("look_up", ["about", "topk"], ["about"]), clock]
    assert describe_schemas(TESTED) == [("ask", ["of", "topk"], ["of"]), clock]
    drawn = {describe_schemas(Task(f"question {number}", "", ()))[0][0] for number in range(40)}
    assert drawn == {"find", "look_up"}


def test_a_prompt_shows_nothing_of_other_names() -> None:
    text = json.dumps(ToolNameMap(TASK, TOOLS).schemas)
    assert "called" not in text
    assert not any(name in text for name in ("look_up", "about", "ask", "query", "search"))
    assert "Search." in text  # the description is unchanged


def test_names_are_only_for_what_has_some() -> None:
    plain = [search.schema, now.schema]
    assert ToolNameMap(TASK, plain).schemas == plain
    call = ToolCall("anything", {"x": 1})
    assert ToolNameMap(TASK, plain).to_canonical(call) == call
    only_tested = add_name_variants(search.schema, [], UNSEEN)
    assert ToolNameMap(TASK, [only_tested]).schemas == [search.schema]
    assert ToolNameMap(TESTED, [only_tested]).schemas[0]["function"]["name"] == "ask"


@given(
    st.sampled_from([TASK, OTHER, TESTED]),
    st.dictionaries(st.sampled_from(["query", "topk"]), st.integers() | st.text()),
)
def test_what_is_written_is_what_is_meant(task: Task, arguments: dict[str, Any]) -> None:
    names = ToolNameMap(task, TOOLS)
    for call in (ToolCall("search", arguments), ToolCall("now", {})):
        assert names.to_canonical(names.to_surface(call)) == call


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (ToolCall("search", {"query": "x"}), "There is no tool 'search'; known: find, now."),
        (ToolCall("look_up", {"about": "x"}), "There is no tool 'look_up'; known: find, now."),
        (ToolCall("find", {"query": "x"}), "Wrong arguments for find: query; known: text, most."),
    ],
)
def test_other_names_are_not_understood(call: ToolCall, reason: str) -> None:
    fault = "arguments" if call.tool == "find" else "tool"
    assert ToolNameMap(TASK, TOOLS).to_canonical(call) == MalformedCall(reason, call.tool, fault)


# -- questions with only some of the tools -----------------------------------------------------


def test_a_question_shows_and_understands_the_tools_that_it_is_asked_with() -> None:
    task = replace(TASK, meta={"offered": ["now"]})
    names = ToolNameMap(task, TOOLS)
    assert [schema["function"]["name"] for schema in names.schemas] == ["now"]
    assert names.to_canonical(ToolCall("now", {})) == ToolCall("now", {})
    for unknown in ("find", "search"):
        found = names.to_canonical(ToolCall(unknown, {}))
        reason = f"There is no tool '{unknown}'; known: now."
        assert found == MalformedCall(reason, unknown, "tool")
    assert ToolNameMap(replace(task, meta={"offered": []}), TOOLS).schemas == []
    with pytest.raises(UserError, match="write a list of names"):
        ToolNameMap(replace(task, meta={"offered": "now"}), TOOLS)


@pytest.mark.parametrize("arguments", [{}, {"text": 3}, {"text": "a", "most": "many"}])
def test_a_message_about_arguments_has_the_names_of_the_prompt(arguments: dict[str, Any]) -> None:
    call = ToolCall("find", arguments)
    [record] = sampled(TASK, DIALECT.render_call(call), "\\boxed{x}").calls
    assert (record.tool, record.fault) == ("search", "arguments")
    assert record.observation.startswith("Wrong arguments for find: ")
    assert {"text", "most"} & set(re.findall(r"\w+", record.observation))
    assert not {"search", "query", "topk"} & set(re.findall(r"\w+", record.observation))


def test_an_argument_of_a_renamed_tool_may_have_any_name() -> None:
    costly = apply_tool_config(search, ToolConfig(name="search", cost=2.0))
    with pytest.raises(ArgumentError, match="self"):
        asyncio.run(costly(query="a", self=1))


def test_a_broken_call_is_told_apart_by_what_it_names() -> None:
    names = ToolNameMap(TASK, TOOLS)
    for name, own in {"find": "search", "now": "now"}.items():
        found = names.to_canonical(MalformedCall("no JSON", name))
        assert found == MalformedCall("no JSON", own, "arguments")
    found = names.to_canonical(MalformedCall("no JSON", "search"))
    assert found == MalformedCall("no JSON", "search", "tool")
    assert names.to_canonical(MalformedCall("no JSON")) == MalformedCall("no JSON", "", "form")


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ('{"name": "now", "arguments": {}}', None),
        ('{"name": "find", "arguments": {}}', "tool"),  # not among the offered tools
        ('{"name": "now", "arguments": {"hour": 3}}', "arguments"),
        ('{"name": "now", "arguments": "now"}', "arguments"),
        ('{"name": "now", "arguments": {"a', "arguments"),
        ('{"name": "find", "arguments": {"a', "tool"),
        ("```python\nprint(1)\n```", "form"),
    ],
)
def test_a_rollout_says_what_is_wrong_with_a_call(written: str, fault: CallFault | None) -> None:
    task = replace(TASK, meta={"offered": ["now"]})
    found = sampled(task, f"<tool_call>\n{written}\n</tool_call>", r"\boxed{x}")
    [call] = found.calls
    assert call.fault is fault
    assert call.outcome is (CallOutcome.OK if fault is None else CallOutcome.MALFORMED)
    prompt = found.segments[0].text
    assert "now" in prompt
    assert "find" not in prompt


# -- rollouts and demonstrations ---------------------------------------------------------------


def sampled(task: Task, *turns: str) -> Trajectory:
    engine = ScriptedEngine(DIALECT.tokenizer, turns)
    env = ToolEnvironment(DIALECT, [NAMED, now])
    return asyncio.run(run_rollout(task, Policy(engine=engine, temperature=0.0), env, task.id))


@pytest.mark.parametrize("task", [TASK, OTHER, TESTED])
def test_a_demonstration_has_the_tokens_of_a_rollout(task: Task) -> None:
    demonstration = encode_demonstration(task, STEPS, DIALECT, TOOLS)
    turns = [DIALECT.turn_end.strip(text) for text in demonstration.policy_turns]
    found = sampled(task, *turns)
    assert [s.ids for s in found.segments] == [s.ids for s in demonstration.segments]
    for trajectory in (found, demonstration):
        calls = [(call.tool, call.arguments, call.outcome) for call in trajectory.calls]
        assert calls == [
            ("search", {"query": "Kalo", "topk": 2}, CallOutcome.OK),
            ("now", {}, CallOutcome.OK),
        ]


def test_literal_text_of_a_call() -> None:
    turn = encode_demonstration(TASK, STEPS, DIALECT, TOOLS).segments[1].text
    assert '{"name": "find", "arguments": {"text": "Kalo", "most": 2}}' in turn


def test_a_call_by_the_tools_own_name_is_malformed() -> None:
    own = DIALECT.render_call(ToolCall("search", {"query": "x"}))
    [call] = sampled(TASK, own, "\\boxed{x}").calls
    assert call == CallRecord(
        "search",
        {},
        "There is no tool 'search'; known: find, now.",
        CallOutcome.MALFORMED,
        0.0,
        fault="tool",
    )


def test_pairs_have_the_names_of_their_question() -> None:
    ways: tuple[list[DemoStep], list[DemoStep]] = ([STEPS[1]], [Answer("x")])
    sides = DemonstrationEncoder(DIALECT, TOOLS).encode_pair(TASK, [Thought("Hm.")], ways)
    assert '"find"' in sides[0].segments[-1].text
    for side, way in zip(sides, ways, strict=True):
        assert DemonstrationEncoder(DIALECT, TOOLS).round_trips(side, way[-1])
    assert not DemonstrationEncoder(DIALECT, TOOLS).round_trips(
        sides[0], ToolCall("search", {"query": "Solo"})
    )
