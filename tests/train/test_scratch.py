"""Chat template of models that are created from scratch."""

from pathlib import Path
from typing import Any

import pytest

from fieldcraft.dialects import make_dialect
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.first_model import write_first_model
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.train.scratch import (
    count_parameters,
    iter_tool_texts,
    make_tiny_model,
    make_tokenizer,
)
from fieldcraft.types import ToolCall, UserError

SEARCH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "BanBer",
        "description": "Search a collection.",
        "parameters": {"type": "object", "properties": {"BinBor": {}, "topk": {}}},
    },
}
TOKENIZER = make_tokenizer(
    ["<tool_call> </tool_call> <think> Who is ?\n", *iter_tool_texts([SEARCH])],
    ["Ban", "Ber", "Bin"],
)
DIALECT = make_dialect("hermes", TOKENIZER, "")


def test_a_prompt_has_a_line_for_each_tool() -> None:
    text = TOKENIZER.decode(DIALECT.encode_prompt("Who is Ban?", [SEARCH, SEARCH]))
    line = "BanBer(BinBor, topk): Search a collection.\n"
    assert text == f"<|user|>{line}{line}Who is Ban?<|assistant|>"


def test_without_tools_it_is_the_question_alone() -> None:
    assert (
        TOKENIZER.decode(DIALECT.encode_prompt("Who is Ban?", []))
        == "<|user|>Who is Ban?<|assistant|>"
    )


def test_calls_and_results_are_those_of_hermes() -> None:
    function = {"name": "BanBer", "arguments": {"BinBor": "Ber"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": function}]},
        {"role": "tool", "content": "He."},
    ]
    text = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    call = '<tool_call>\n{"name": "BanBer", "arguments": {"BinBor": "Ber"}}\n</tool_call>'
    result = "<tool_response>\nHe.\n</tool_response>"
    assert text == f"<|user|>Who?<|assistant|>{call}<|end|><|user|>{result}<|assistant|>"
    assert DIALECT.render_call(ToolCall("BanBer", {"BinBor": "Ber"})) == call
    assert DIALECT.render_observation("He.") == f"<|user|>{result}<|assistant|>"


def test_a_name_is_copied_by_its_syllables() -> None:
    """A name that training never contains therefore consists of tokens that training contains."""
    ids = TOKENIZER.encode('"BanBer"', add_special_tokens=False)
    assert [TOKENIZER.decode([i]) for i in ids] == ['"', "Ban", "Ber", '"']


@pytest.mark.parametrize(("layers", "width", "heads"), [(2, 16, 1), (5, 48, 2)])
def test_parameters_are_counted_before_they_are_made(layers: int, width: int, heads: int) -> None:
    model = make_tiny_model(TOKENIZER, layers=layers, width=width, heads=heads, seed=0)
    found = sum(parameter.numel() for parameter in model.parameters())
    assert count_parameters(len(TOKENIZER), layers, width) == found


def test_a_model_larger_than_the_memory_is_refused_before_it_is_made(tmp_path: Path) -> None:
    recipe = load_recipe("smoke", ["tiny_model.width=1000000"])
    with pytest.raises(
        UserError, match=r"tiny_model\.width=1000000.* GB are available: lower them\."
    ):
        write_first_model(make_data_source(recipe), tmp_path / "model")
    assert not (tmp_path / "model").exists()
