"""Markup of other formats in messages, which is neither parsed nor learned as text."""

import json
from keyword import iskeyword
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.records import RecordError
from fieldcraft.extensions.formats.chat_messages import parse_chat
from fieldcraft.types import Answer, Thought

USER = {"role": "user", "content": "Q?"}
MARKUP = [
    "[TOOL_CALLS] [{}]",
    "<|python_tag|>{}",
    "<function=f>{}</function>",
    "<search>x</search>",
    "<search>x</search><information>r</information>A",
    "<code>print(1)</code><interpreter>1</interpreter>A",
    "<tool_response>r</tool_response>A",
    "Thought: t\nAction: f[x]\nObservation: r\nFinal Answer: A",
    "<think>t</think><search>x</search><information>r</information><think>u</think>A",
    "<think>t <information>r</information></think>A",
    "Thought: t\nAction: f\nAction Input: {}",
    "Thought 1: t\nAction 1: Search[x]\nObservation 1: r\nAction 2: Finish[A]",
    "Action 2: Finish[A]",
    "<python>print(1)</python><result>1</result><answer>1</answer>",
    "<think>t</think><tool>f x</tool>",
    "```tool_code\nf(x=1)\n```",
    "A\n```tool_output\nr\n```\nB",
    "Thought: t\nCode:\n```py\nfinal_answer(1)\n```<end_code>",
    'Thought: t\n<code>\nfinal_answer("A")\n</code>',
    '{"name": "f", "parameters": {"x": 1}}',
    '[{"name": "f", "arguments": {}}]',
    'functools[{"name": "f", "arguments": {}}]',
    '```json\n{"type": "function", "function": {"name": "f", "arguments": {}}}\n```',
    "<think>t</think>[f(x=1), g.h()]",
    "[THINK]t[/THINK]A",
    "\u25c1think\u25b7t\u25c1/think\u25b7A",
    "<|channel|>final<|message|>A",
    "A<|im_end|>",
    "A</s>",
    "A<\uff5cend\u2581of\u2581sentence\uff5c>",
]


@pytest.mark.parametrize("text", MARKUP)
def test_markup_that_is_not_read_leaves_the_record_out(text: str) -> None:
    """Otherwise a model would learn to write results itself, and ends of turns as characters."""
    with pytest.raises(RecordError, match="in an unsupported format"):
        parse_chat([USER, {"role": "assistant", "content": text}])


@pytest.mark.parametrize(
    "text",
    [
        "<think>I could <search>x</search></think>A",
        "The tags <b> and <s>old</s> are of HTML",
        "a <| b |> c",
        "Action: none",
        "[f(x), g(y)]",
        "[1, 2]",
        '{"name": "Ada", "born": 1815}',
        '{"name": "f", "arguments": {}} is a call',
        "x[INSTALL]",
    ],
)
def test_texts_that_only_look_like_markup_are_read(text: str) -> None:
    assert parse_chat([USER, {"role": "assistant", "content": text}]).steps


NAMES = st.from_regex(r"[a-z_]{1,6}(\.[a-z]{1,4})?", fullmatch=True).filter(
    lambda name: not any(map(iskeyword, name.split(".")))
)
VALUES = st.recursive(
    st.text(max_size=6) | st.integers(), lambda v: st.dictionaries(st.text(max_size=3), v)
)
ARGUMENTS = st.dictionaries(
    st.from_regex(r"[a-z]{1,4}", fullmatch=True).filter(lambda name: not iskeyword(name)), VALUES
)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=3)


@pytest.mark.long
@given(CALLS, st.sampled_from(["arguments", "parameters"]), st.booleans())
def test_calls_alone_are_never_learned_as_an_answer(
    calls: list[tuple[str, dict[str, Any]]], key: str, in_brackets: bool
) -> None:
    text = json.dumps([{"name": name, key: arguments} for name, arguments in calls])
    if in_brackets:
        given = [", ".join(f"{k}={v!r}" for k, v in arguments.items()) for _, arguments in calls]
        named = [f"{name}({g})" for (name, _), g in zip(calls, given, strict=True)]
        text = f"[{', '.join(named)}]"
    with pytest.raises(RecordError):
        parse_chat([USER, {"role": "assistant", "content": text}])


def test_a_thought_that_a_server_gives_twice_is_learned_once() -> None:
    message = {"role": "assistant", "reasoning_content": "t\n", "content": "<think>\nt</think>A"}
    assert parse_chat([USER, message]).steps == [Thought("t"), Answer("A")]
