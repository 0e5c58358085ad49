"""Formats of calls in blocks of tags: what is malformed, numbers of calls, values, and answers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auto_parts import DIALECTS, TASK, TOOLS, roll_out
from call_family import CALLS
from fieldcraft.dialects.calls import locate_observations
from fieldcraft.dialects.encoding import encode_demonstration
from fieldcraft.types import (
    Answer,
    CallOutcome,
    DemoStep,
    MalformedCall,
    Observation,
    ObservationPosition,
    Thought,
    ThoughtRole,
    ToolCall,
)
from tagged_call_families import TAGGED_CALL_FAMILIES

TAGGED = pytest.mark.parametrize("name", TAGGED_CALL_FAMILIES)
KIMI_CALL = "<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
KIMI_SECTION = "<|tool_calls_section_begin|>"
DSML_START = '<｜DSML｜function_calls>\n<｜DSML｜invoke name="search">\n'
DSML_END = "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
MINIMAX_START = '<minimax:tool_call>\n<invoke name="search">\n'
MINIMAX_END = "</invoke>\n</minimax:tool_call>"

# -- malformed calls ------------------------------------------------------------------------------

MALFORMED = {
    "Kimi K2": [
        KIMI_CALL.replace("functions.search:0", "search"),  # without a number
        KIMI_CALL.replace("{}", "{"),
        KIMI_CALL.replace("{}", "[1]"),
        KIMI_CALL.replace("<|tool_call_end|>", ""),
        f"{KIMI_SECTION}<|tool_calls_section_end|>",
        KIMI_SECTION,
    ],
    "MiniMax M2": [
        f'{MINIMAX_START}<parameter name="query">x\n{MINIMAX_END}',
        f'{MINIMAX_START}<parameter name="a">x</parameter><parameter name="a">y</parameter>'
        f"{MINIMAX_END}",
        "<minimax:tool_call>\n</minimax:tool_call>",
        '<minimax:tool_call>{"name": "search", "arguments": {}}</minimax:tool_call>',
        MINIMAX_START,
        "</minimax:tool_call>",
    ],
    "LFM2.5": [
        "<|tool_call_start|>[search(query=Oslo)]<|tool_call_end|>",
        "<|tool_call_start|>[search(query='it's')]<|tool_call_end|>",
        "<|tool_call_start|>[]<|tool_call_end|>",
        "<|tool_call_start|>search(query='x')<|tool_call_end|>",
        "<|tool_call_start|>[search(",
        "<|tool_call_end|>",
    ],
    "Command R7B": [
        "<|START_ACTION|>[]<|END_ACTION|>",
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "search"}]<|END_ACTION|>',
        '<|START_ACTION|>[{"tool_name": 1, "parameters": {}}, 2]<|END_ACTION|>',
        '<|START_ACTION|>[{"tool_name": "search", "parameters": {}}]',
        "<|START_ACTION|>search",
        "<|END_ACTION|>",
    ],
    "DeepSeek V4": [
        f'{DSML_START}<｜DSML｜parameter name="a">x</｜DSML｜parameter>\n{DSML_END}'.replace(
            "function_calls", "tool_calls"
        ),
        "<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>",
    ],
    "DeepSeek V3.2": [
        f'{DSML_START}<｜DSML｜parameter name="a">x</｜DSML｜parameter>\n{DSML_END}',
        *(
            f'{DSML_START}<｜DSML｜parameter name="a" string="false">{value}</｜DSML｜parameter>\n'
            f"{DSML_END}"
            for value in ("x", "NaN", "")
        ),
        f'{DSML_START}<｜DSML｜parameter name="a" string="true">x\n{DSML_END}',
        "<｜DSML｜function_calls>\n</｜DSML｜function_calls>",
        DSML_START,
    ],
}


@pytest.mark.parametrize(
    ("name", "turn"), [(name, turn) for name, turns in MALFORMED.items() for turn in turns]
)
def test_a_malformed_call_is_none(name: str, turn: str) -> None:
    parsed = DIALECTS[name].parse([turn])
    assert isinstance(parsed, tuple)
    assert {type(call) for call in parsed} == {MalformedCall}
    assert not DIALECTS[name].is_well_formed([turn, DIALECTS[name].render_answer("x")])


@TAGGED
def test_calls_before_a_malformed_one_are_run(name: str) -> None:
    dialect = DIALECTS[name]
    text = dialect.render_calls(CALLS)
    start = text.index("look")
    parsed = dialect.parse([text[:start] + "look\n\n" + text[start + 4 :].replace(">", "", 1)])
    assert isinstance(parsed, tuple)
    if name.startswith("Command"):  # its calls are one list in JSON
        assert [type(call) for call in parsed] == [MalformedCall]
    else:
        assert [*map(type, parsed)] == [ToolCall, MalformedCall]
        assert parsed[0] == CALLS[0]


@TAGGED
def test_calls_in_the_middle_of_a_text_are_read(name: str) -> None:
    dialect = DIALECTS[name]
    turn = f"I look.{dialect.render_calls(CALLS)}Then I answer."
    assert dialect.parse([turn]) == CALLS
    final = dialect.render_answer("x")
    assert not dialect.is_well_formed([turn, final])
    assert dialect.is_well_formed([turn.removesuffix("Then I answer."), final])


@TAGGED
@pytest.mark.parametrize(
    ("tool", "label"), [("nowhere", "nowhere"), ("search<|im_end|>", "search"), ("a b", "a")]
)
def test_a_call_of_an_unknown_tool_is_reported(name: str, tool: str, label: str) -> None:
    dialect = DIALECTS[name]
    text = dialect.render_calls(CALLS[:1]).replace("search", tool)
    turns = [text, dialect.render_answer("Oslo")]
    trajectory = roll_out(name, [dialect.encode_turn(turn) for turn in turns])
    [record] = trajectory.calls
    assert record.outcome is CallOutcome.MALFORMED
    assert trajectory.answer == "Oslo"
    if name.startswith("Kimi"):
        assert f"## Return of functions.{label}:0\n" in trajectory.segments[2].text


# -- numbers of calls -----------------------------------------------------------------------------

STEPS: list[DemoStep] = [
    *(CALLS[0], Observation("a"), CALLS[0], CALLS[1], Observation("b"), Observation("c")),
    *(Thought("So far.", ThoughtRole.SUMMARY), CALLS[1], Observation("d"), Answer("Oslo")),
]
NUMBERED = {
    "Kimi K2": ("<|tool_call_begin|>functions.{}:{}<", "## Return of functions.{}:{}\n"),
    **dict.fromkeys(
        ("Command R7B", "Command A"),
        ('"tool_call_id": "{1}", "tool_name": "{0}"', '"tool_call_id": "{1}",\n'),
    ),
}


@pytest.mark.parametrize("name", NUMBERED)
def test_numbers_of_calls_count_on_until_the_chain_is_folded(name: str) -> None:
    trajectory = encode_demonstration(TASK, STEPS, DIALECTS[name], TOOLS)
    assert trajectory.well_formed
    text = "".join(segment.text for segment in trajectory.segments)
    for form in NUMBERED[name]:
        position = 0
        for call in (("search", 0), ("search", 1), ("look", 2), ("look", 0)):
            position = text.index(form.format(*call), position) + 1


@pytest.mark.parametrize("name", NUMBERED)
def test_the_number_that_the_policy_wrote_returns_with_the_result(name: str) -> None:
    dialect = DIALECTS[name]
    call = ToolCall("look", {"page": "x"})
    [numbered] = dialect.number_calls([call], 7)
    parsed = dialect.parse([dialect.render_calls([numbered])])
    assert parsed == (call,)
    assert isinstance(parsed, tuple)
    [place] = locate_observations(parsed)
    assert NUMBERED[name][1].format("look", 7) in dialect.render_observation("x", place)


@pytest.mark.parametrize("label", ["look:1", "functions.other:3", "١", "7<|im_end|>", "-1", ""])
@pytest.mark.parametrize("name", NUMBERED)
def test_a_foreign_id_is_replaced_by_the_number(name: str, label: str) -> None:
    dialect = DIALECTS[name]
    call = ToolCall("search", {}, label)
    assert dialect.render_calls([call]) == dialect.render_calls([ToolCall("search", {})])
    opening, _ = dialect.observation_delimiters(ObservationPosition(0, 1, (call,)))
    assert NUMBERED[name][1].format("search", 0) in opening


# -- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("LFM2.5", "a\nb", "'a\nb'"),
        ("LFM2.5", ["a", True, None], "['a', True, None]"),
        ("LFM2.5", {"k": [True]}, '{"k": [true]}'),
        ("LFM2.5", "it's\\n", "'it\\'s\\\\n'"),
        ("LFM2", "a\nb", "'a\\nb'"),
        ("LFM2", ["a", True, None], '["a", true, null]'),
        ("LFM2", False, "False"),
        ("LFM2.5", ["\U000e0001"], "['\\U000e0001']"),
    ],
)
def test_values_of_lfm(name: str, value: Any, text: str) -> None:
    call = ToolCall("f", {"a": value})
    rendered = DIALECTS[name].render_call(call)
    assert rendered == f"<|tool_call_start|>[f(a={text})]<|tool_call_end|>"
    assert DIALECTS[name].parse([rendered]) == (call,)


@pytest.mark.parametrize("name", ["DeepSeek V3.2", "DeepSeek V4"])
def test_values_of_deepseek_have_types(name: str) -> None:
    call = ToolCall("f", {"a": "5", "b": 5, "c": ["</｜DSML｜parameter>", None]})
    rendered = DIALECTS[name].render_call(call)
    assert '"a" string="true">5</' in rendered
    assert '"b" string="false">5</' in rendered
    assert DIALECTS[name].parse([rendered]) == (call,)


# -- answers and ends -----------------------------------------------------------------------------


COHERE_ANSWERS = pytest.mark.parametrize(
    ("name", "tag"),
    [("Command R7B", "RESPONSE"), ("Command A", "RESPONSE"), ("Command A, text tags", "TEXT")],
)


@COHERE_ANSWERS
@settings(deadline=None)
@given(text=st.text("ab <|>_ENDRSPOTX\n", max_size=20))
def test_an_answer_of_cohere_is_between_tags(name: str, tag: str, text: str) -> None:
    dialect = DIALECTS[name]
    turn = f"<|START_{tag}|>{text}<|END_{tag}|><|END_OF_TURN_TOKEN|>"
    assert dialect.parse([turn]) == (Answer(text.strip()) if text.strip() else None)


@COHERE_ANSWERS
def test_a_turn_of_cohere_ends_after_the_tag_of_the_answer(name: str, tag: str) -> None:
    dialect = DIALECTS[name]
    text = dialect.render_answer("Oslo")
    assert text == f"<|START_{tag}|>\\boxed{{Oslo}}<|END_{tag}|>"
    ids = dialect.encode_turn(text)
    assert dialect.tokenizer.decode(ids) == f"{text}<|END_OF_TURN_TOKEN|>"
    assert len(dialect.turn_end.ids) == 1  # not the tag after the answer
    assert dialect.is_well_formed([dialect.tokenizer.decode(ids)])
    assert not dialect.is_well_formed([f"x{text}"])
