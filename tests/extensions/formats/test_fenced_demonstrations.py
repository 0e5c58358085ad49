"""Programs and results in fences of one text become calls and observations; other text does not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.records import RecordError
from fieldcraft.extensions.formats.chat_messages import parse_chat
from fieldcraft.types import Answer, DemoStep, Observation, Thought, ToolCall

WORDS = st.text(alphabet="abc =$", min_size=1).map(str.strip).filter(bool)
TURNS = st.lists(st.tuples(WORDS | st.just(""), WORDS, WORDS), min_size=1, max_size=3)


def steps_in(content: Any) -> list[DemoStep]:
    message = {"role": "assistant", "content": content}
    return parse_chat([{"role": "user", "content": "What?"}, message]).steps


@given(turns=TURNS, language=st.sampled_from(["python", "py", "Python"]), parts=st.booleans())
def test_each_program_is_a_call_with_its_result(
    turns: list[tuple[str, str, str]], language: str, parts: bool
) -> None:
    text, expected = "", list[DemoStep]()
    for before, program, result in turns:
        text += f"{before}\n```{language}\n{program}\n```\n```output\n{result}\n```\n"
        expected += [Thought(before)] if before else []
        expected += [ToolCall("python", {"code": program}), Observation(result)]
    text += "It is \\boxed{7}."
    content = [{"type": "text", "text": text}] if parts else text
    assert steps_in(content) == [*expected, Thought("It is"), Answer("7")]


@pytest.mark.parametrize(
    "text",
    [
        "```output\n3\n```\nSo 3",
        "```python\n3\n```\nThis prints:\n```output\n3\n```\nSo 3",
        "```python\n3\n```\n```python\n4\n```\n```output\n3\n```\nSo 3",
        "```python\n3\n```\n```output\n3\nSo 3",
        "```python\n3\n```\n```output\n3\n```\n```python\n4\n```",
        "<think>\n```python\n3\n```\n```output\n3\n```\n</think>\nSo 3",
    ],
)
def test_what_does_not_alternate_is_left_out(text: str) -> None:
    with pytest.raises(RecordError, match=r"do not alternate|a thought that never ends"):
        steps_in(text)


def test_a_program_without_a_result_is_text() -> None:
    assert steps_in("```python\n3\n```") == [Answer("```python\n3\n```")]


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        ("So it is $\\boxed{7}$.", "So it is"),
        ("With $a$ we get $a = \\boxed{7}$ crowns.", "With $a$ we get"),
        ("So \\[ x = \\boxed{7}. \\]", "So"),
        ("So $$\\boxed{7}$$", "So"),
        ("It costs $5 and $6, so \\boxed{7}.", "It costs $5 and $6, so"),
        ("With $a$ it is \\boxed{7}.", "With $a$ it is"),
    ],
)
def test_a_thought_before_a_box_ends_in_no_open_formula(text: str, thought: str) -> None:
    assert steps_in(text) == [Thought(thought), Answer("7")]
