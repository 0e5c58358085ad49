"""Unsupported shapes of demonstrations: each is answered by one sentence with the remedy."""

from pathlib import Path
from typing import Any

import pytest

from fieldcraft.data.file_formats import read_any_demonstrations
from fieldcraft.types import UserError
from source_files import lines

USER = {"role": "user", "content": "Q?"}
CALL = {"type": "tool_use", "id": "a", "name": "search", "input": {"query": "q"}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "r"}
PLAIN = {"messages": [USER, {"role": "assistant", "content": "A"}]}
OPENAI = "write OpenAI's 'messages', with calls in 'tool_calls'"
SHAPES: list[tuple[dict[str, Any], str, str]] = [
    (
        {"messages": [USER, {"role": "assistant", "content": [CALL]}]},
        "holds messages of Anthropic",
        OPENAI,
    ),
    ({"messages": [USER, {"role": "user", "content": [RESULT]}]}, "of Anthropic", OPENAI),
    ({"contents": [{"role": "user", "parts": [{"text": "Q?"}]}]}, "holds Gemini's", OPENAI),
    (
        {"input": [USER, {"type": "function_call", "name": "f", "arguments": "{}"}]},
        "holds items of OpenAI's Responses",
        OPENAI,
    ),
    ({"output": [{"type": "message", "content": []}]}, "of OpenAI's Responses", OPENAI),
    (
        {"instruction": "Say.", "input": "", "output": "A"},
        "holds Alpaca's",
        "write OpenAI's 'messages', with instruction and input",
    ),
]


@pytest.mark.parametrize(("record", "shape", "remedy"), SHAPES)
@pytest.mark.parametrize("before", [[], [PLAIN]])
def test_it_is_refused_with_its_shape_and_the_remedy(
    tmp_path: Path, record: dict[str, Any], shape: str, remedy: str, before: list[dict[str, Any]]
) -> None:
    with pytest.raises(UserError) as refused:
        read_any_demonstrations(lines(tmp_path / "d.jsonl", *before, record))
    sentence = str(refused.value)
    assert f"line {len(before) + 1} " in sentence
    assert shape in sentence
    assert remedy in sentence
    assert "\n" not in sentence


def test_texts_in_blocks_are_read(tmp_path: Path) -> None:
    message = {"role": "assistant", "content": [{"type": "text", "text": "A"}]}
    demonstrations, left_out = read_any_demonstrations(
        lines(tmp_path / "d.jsonl", {"messages": [USER, message]})
    )
    assert (len(demonstrations), left_out.total()) == (1, 0)


def test_toolrl_has_instructions_of_its_own(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "d.jsonl",
        {
            "instruction": "# Tools\n<tool_call>",
            "input": "**Dialogue Records History**\n<user> Q? </user>",
            "output": "<think> So. </think>\n<response> A </response>",
        },
    )
    assert len(read_any_demonstrations(path, 1.0)[0]) == 1
