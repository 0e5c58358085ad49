"""Properties of the dialect `auto` for arbitrary texts, and values without types."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auto_parts import DIALECTS, EVERY, TASK, TOOLS, calls_of
from call_families import CALL_FAMILIES
from fieldcraft.dialects.calls import locate_observations
from fieldcraft.dialects.tool_names import ToolNameMap
from fieldcraft.dialects.untyped import UntypedText, with_types
from fieldcraft.types import (
    Answer,
    ToolCall,
    UserError,
)

# -- values without types -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {"type": "integer"}, 5),
        ("true", {"type": "boolean"}, True),
        ("True", {"type": "boolean"}, True),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("[1]", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "[1]"),
        ('["a"]', {"type": "array"}, ["a"]),
        ("x", {"type": "integer"}, "x"),
        ("NaN", {"type": "number"}, "NaN"),
        ("5", {"enum": ["5", "6"]}, "5"),
        ('["a"]', {"type": "array", "enum": ["a", "b"]}, ["a"]),
        ('"x"', {}, '"x"'),
        ("7", None, 7),
    ],
)
def test_the_schema_of_a_tool_gives_a_value_its_type(text: str, schema: Any, value: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {}}}}
    if schema is not None:
        tool["function"]["parameters"]["properties"]["a"] = schema  # type: ignore[index]
    typed = with_types(ToolCall("f", {"a": UntypedText(text), "b": 1}), tool)
    assert typed == ToolCall("f", {"a": value, "b": 1})
    assert type(typed.arguments["a"]) is type(value)


UNTYPED = ("Qwen3-Coder", "GLM-4.5", "MiniMax M2")


@pytest.mark.parametrize("name", UNTYPED)
def test_values_get_their_types_before_a_call_is_run(name: str) -> None:
    call = ToolCall("search", {"query": "1984", "count": 3})
    parsed = DIALECTS[name].parse([DIALECTS[name].render_call(call)])
    assert isinstance(parsed, tuple)
    assert ToolNameMap(TASK, TOOLS).to_canonical(parsed[0]) == call


# -- properties -----------------------------------------------------------------------------------

PARTS = sorted(
    {
        part
        for dialect in DIALECTS.values()
        for tag in (*dialect.tags, *dialect.turn_end.texts, "{", "}", "[", "]", '"', "\\", "\0")
        for part in (tag, tag[:3])
    }
    | {"search", "query", "call:", "=", "(", ")", "to=functions.f", "final", '"name"', "```"}
)
tagged = st.lists(st.sampled_from(PARTS) | st.text(max_size=5)).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(-1e9, 1e9) | tagged,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
names = st.text("abz_.-09", min_size=1, max_size=8)


@EVERY
@settings(deadline=None)
@given(turns=st.lists(tagged, min_size=1, max_size=3))
def test_any_text_is_parsed(name: str, turns: list[str]) -> None:
    dialect = DIALECTS[name]
    parsed = dialect.parse(turns)
    assert parsed is None or isinstance(parsed, Answer) or len(parsed) > 0
    assert not dialect.is_well_formed(turns) or isinstance(parsed, Answer)
    dialect.render_answer_opening(turns[-1])


@EVERY
@settings(deadline=None)
@given(tool=names, arguments=st.dictionaries(names, values, max_size=3), thought=tagged)
def test_a_call_comes_back_or_cannot_be_written(
    name: str, tool: str, arguments: dict[str, Any], thought: str
) -> None:
    dialect = DIALECTS[name]
    call = ToolCall(tool, arguments)
    try:
        text = dialect.render_call(call)
    except UserError:
        tagged = ("Gemma 4", "FunctionGemma", "Gemma 3", "DeepSeek V3.2", "DeepSeek V4")
        assert name in (*UNTYPED, *tagged)
        return
    parsed = dialect.parse([text])
    assert isinstance(parsed, tuple)
    [read] = parsed
    assert isinstance(read, ToolCall)
    assert dialect.render_call(read) == text
    if name not in UNTYPED:  # their values have no types
        assert read == call
    ids = dialect.encode_turn(text)
    assert dialect.tokenizer.decode(ids) == text + CALL_FAMILIES[name].end
    assert dialect.parse([dialect.tokenizer.decode(ids)]) == parsed


@EVERY
@settings(deadline=None)
@given(text=tagged)
def test_only_the_frames_of_a_result_hold_special_tokens(name: str, text: str) -> None:
    dialect = DIALECTS[name]
    special = {*dialect.tokenizer.all_special_ids, *dialect.tokenizer.added_tokens_decoder}
    for place in locate_observations(tuple(calls_of(name))):
        ids = dialect.encode_observation(text, place)
        assert dialect.tokenizer.decode(ids) == dialect.render_observation(text, place)
        harmless = dialect.encode_observation("x", place)
        assert [i for i in ids if i in special] == [i for i in harmless if i in special]


plain = st.text(st.characters(exclude_characters="<>{}[]\\`|", exclude_categories=["Cs"])).map(
    str.strip
)


@EVERY
@settings(deadline=None)
@given(thought=plain, query=plain.filter(bool), answer=plain.filter(bool))
def test_whole_conversations_come_back(name: str, thought: str, query: str, answer: str) -> None:
    dialect = DIALECTS[name]
    call = ToolCall("search", {"query": query})
    turn = dialect.render_thought(thought) + dialect.render_call(call)
    final = dialect.render_thought(thought) + dialect.render_answer(answer)
    assert dialect.parse([turn]) == (call,)
    assert dialect.parse([turn, final]) == Answer(answer)
    ended = [dialect.tokenizer.decode(dialect.encode_turn(text)) for text in (turn, turn, final)]
    assert dialect.is_well_formed(ended) == ("\0" not in "".join(ended))
    assert not dialect.is_well_formed([turn, turn])
