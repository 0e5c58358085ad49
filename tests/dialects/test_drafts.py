"""Calls and answers are read from their places, not from tags in thoughts or strings."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from dialect_parts import ACTING, action_of
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.calls import parse_turn
from fieldcraft.dialects.encoding import DemonstrationEncodingError, encode_demonstration
from fieldcraft.extensions.methods.toolrl import parse_answer_calls
from fieldcraft.records.chains import get_policy_turns
from fieldcraft.types import (
    Answer,
    DemoStep,
    Dialect,
    MalformedCall,
    Observation,
    Task,
    Thought,
    ToolCall,
    Trajectory,
)

TOKENIZER = tiny_tokenizer()
DIALECT_OF = {name: make_dialect(name, TOKENIZER, instruction="") for name in ACTING}
HERMES = DIALECT_OF["hermes"]
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'
TAGS = (
    *("<tool_call>", "</tool_call>", "<think>", "<answer>", "</answer>", "<search>", "</search>"),
    *("<code>", "</code>", "<begin_search>", "</end_search>", "\\boxed{", "{", "}", '"', CALL),
    *("<answer> Rome </answer>", "<search> Rome </search>", "\\boxed{Rome}", "é", "日本", "\n"),
)
PIECE = st.sampled_from(TAGS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
TEXT = st.lists(PIECE, max_size=6).map("".join)
DRAFT = TEXT.map(lambda text: f"So {text} it".replace("\0", "").strip())
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT | st.just("</think>"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(TEXT, VALUE, max_size=3)


@settings(deadline=None, max_examples=150)
@given(draft=DRAFT, arguments=st.lists(ARGUMENTS, min_size=1, max_size=3), answer=TEXT)
def test_hermes_reads_every_call_whatever_its_thoughts_and_strings_say(
    draft: str, arguments: list[dict[str, Any]], answer: str
) -> None:
    """The JSON may have any style: the tags in it do not need to be escaped."""
    thought = HERMES.render_thought(draft)
    calls = [ToolCall("f", given) for given in arguments]
    plain = "\n".join(
        f"<tool_call>{json.dumps({'name': 'f', 'arguments': a}, ensure_ascii=False)}</tool_call>"
        for a in arguments
    )
    assert HERMES.parse([thought + HERMES.render_calls(calls)]) == tuple(calls)
    assert HERMES.parse([thought + plain]) == tuple(calls)
    assert HERMES.parse([f"{draft}</think>{plain}"]) == tuple(calls)
    assert HERMES.parse([f"{thought}\\boxed{{Oslo}}"]) == Answer("Oslo")
    assert HERMES.parse([f"<think>\n{draft}"]) is None


@pytest.mark.parametrize("name", ["hermes", "toolrl"])
@pytest.mark.parametrize("tag", ["thinking", "thought", "reasoning"])
def test_a_thought_between_tags_of_others_is_no_part_of_the_answer(name: str, tag: str) -> None:
    dialect = make_dialect(name, TOKENIZER)
    thought = f"<{tag}>\nRome, or {CALL}?\n</{tag}>\n\n"
    assert dialect.parse([f"{thought}Oslo"]) == Answer("Oslo")
    assert HERMES.parse([thought + CALL]) == (ToolCall("search", {"query": "x"}),)
    assert dialect.parse([f"Write <{tag}>x</{tag}> y"]) == Answer(f"Write <{tag}>x</{tag}> y")


@settings(deadline=None, max_examples=60)
@given(draft=DRAFT, query=DRAFT, answer=st.sampled_from(["Oslo", "日本", "12"]))
@pytest.mark.parametrize("name", ACTING)
def test_what_is_written_is_read_or_refused(name: str, draft: str, query: str, answer: str) -> None:
    """No demonstration teaches a turn that would be read as something else."""
    dialect = DIALECT_OF[name]
    action = action_of(name, query)
    steps: list[DemoStep] = [
        *(Thought(draft), action, Observation(query), Thought(draft), action),
        *(Observation(draft), Answer(answer)),
    ]
    task = Task("q", "Who?", ())
    if name != "hermes" and any(tag in draft + query for tag in (*dialect.tags, "```", "\\boxed")):
        with suppress(
            DemonstrationEncodingError
        ):  # content without a place is never written as something else
            require_same(dialect, encode_demonstration(task, steps, dialect, []), action, answer)
        return
    require_same(dialect, encode_demonstration(task, steps, dialect, []), action, answer)


def require_same(dialect: Dialect, encoded: Trajectory, action: ToolCall, answer: str) -> None:
    turns = get_policy_turns(encoded.segments)
    assert [dialect.parse(turns[:end]) for end in (1, 2, 3)] == [
        (action,),
        (action,),
        Answer(answer),
    ]


@settings(deadline=None, max_examples=60)
@given(draft=DRAFT.filter(lambda text: "think>" not in text))
@pytest.mark.parametrize("name", [n for n in ACTING if DIALECT_OF[n].tagged_roles])
def test_a_draft_in_a_thought_is_no_move(name: str, draft: str) -> None:
    dialect = DIALECT_OF[name]
    action = action_of(name, "who")
    call, answer = dialect.render_call(action), dialect.render_answer("Rome")
    for drafted in (draft, f"{draft} {call}", f"{draft} {answer}"):
        thought = f"<think>\n{drafted} or not\n</think>\n"
        assert dialect.parse([thought + dialect.render_answer("Oslo")]) == Answer("Oslo")
        assert dialect.parse([thought + call]) == (action,)
        unfinished = dialect.parse([f"<think>\n{drafted}"])
        assert unfinished is None or all(isinstance(m, MalformedCall) for m in tuple(unfinished))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", [n for n in ACTING if DIALECT_OF[n].tagged_roles and DIALECT_OF[n].stop_strings]
)
def test_who_calls_inside_of_a_thought_is_told(name: str) -> None:
    dialect = DIALECT_OF[name]
    [call] = dialect.parse([f"<think>\nOr {dialect.render_call(action_of(name, 'who'))}"]) or ()  # type: ignore[misc]
    assert isinstance(call, MalformedCall)
    assert "write </think> before <" in call.reason


def test_autocoa_searches_inside_of_its_thought() -> None:
    turn = "Hm.\n<begin_search> who </end_search>"
    assert DIALECT_OF["autocoa"].parse([turn]) == (ToolCall("search", {"query": "who"}),)


@settings(deadline=None)
@given(arguments=st.lists(ARGUMENTS, min_size=1, max_size=3))
def test_toolrl_reads_each_line(arguments: list[dict[str, Any]]) -> None:
    lines = [json.dumps({"name": "f", "parameters": given}) for given in arguments]
    answer = "\n".join(("<tool_call>", *lines, "</tool_call>", "<response> x </response>"))
    assert parse_answer_calls(answer) == tuple(ToolCall("f", given) for given in arguments)


@settings(deadline=None)
@given(text=TEXT)
def test_a_turn_is_its_thought_its_calls_and_what_is_between(text: str) -> None:
    turn = parse_turn(text)
    assert len(turn.texts) == len(turn.calls) + 1
    assert turn.start + sum(map(len, turn.texts)) <= len(text)
    assert text[turn.start :].startswith(turn.texts[0])
    assert text.endswith(turn.texts[-1])
