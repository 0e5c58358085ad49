"""Markup of other formats in messages, which is not read and not learned as text."""

import pytest

from fieldcraft.data.formats.chat import read_chat
from fieldcraft.data.records import Malformed

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
    "[THINK]t[/THINK]A",
    "\u25c1think\u25b7t\u25c1/think\u25b7A",
    "<|channel|>final<|message|>A",
    "A<|im_end|>",
    "A</s>",
    "A<\uff5cend\u2581of\u2581sentence\uff5c>",
]


@pytest.mark.parametrize("text", MARKUP)
def test_markup_that_is_not_read_leaves_the_record_out(text: str) -> None:
    """Else a model would learn to write results itself, and ends of turns as letters."""
    with pytest.raises(Malformed, match="of a format that is not read"):
        read_chat([USER, {"role": "assistant", "content": text}])


@pytest.mark.parametrize(
    "text",
    [
        "<think>I could <search>x</search></think>A",
        "The tags <b> and <s>old</s> are of HTML",
        "a <| b |> c",
        "Action: none",
        "x[INSTALL]",
    ],
)
def test_texts_that_only_look_like_markup_are_read(text: str) -> None:
    assert read_chat([USER, {"role": "assistant", "content": text}]).steps
