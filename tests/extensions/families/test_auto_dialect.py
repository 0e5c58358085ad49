"""The dialect `auto` writes what the template of each family writes."""

from pathlib import Path

import pytest

from auto_parts import DIALECTS, EVERY, TASK, TOOLS, calls_of
from call_families import CALL_FAMILIES, QWEN_HERMES
from call_family import CALLS
from call_format_checks import demonstrate, make_table, render_by_template, tools_of
from fieldcraft.dialects import check_round_trip, make_dialect
from fieldcraft.dialects.base import SUMMARY_INSTRUCTION
from fieldcraft.dialects.calls import locate_observations
from fieldcraft.dialects.encoding import encode_demonstration
from fieldcraft.runs.dialect_choice import DialectChoice
from fieldcraft.types import (
    Answer,
    Author,
    DemoStep,
    MalformedCall,
    Observation,
    ObservationPosition,
    Thought,
    ThoughtRole,
    ToolCall,
    UserError,
)

DOCS = Path(__file__).parents[3] / "docs"

# -- literal texts --------------------------------------------------------------------------------


@EVERY
def test_the_format_is_found_and_written(name: str) -> None:
    family, dialect = CALL_FAMILIES[name], DIALECTS[name]
    calls = calls_of(name)
    assert dialect.template_format == family.call_format
    assert dialect.render_calls(calls) == family.calls
    assert dialect.render_thought("T") == family.thought
    assert dialect.layout is not None
    assert dialect.layout.call_end == family.end
    assert dialect.layout.is_single is family.is_single
    places = locate_observations((CALLS[0], CALLS[0]) if family.is_single else CALLS)
    (opening, between), (nothing, closing) = map(dialect.observation_delimiters, places)
    assert (opening, between, closing, nothing) == (*family.results, "")
    assert check_round_trip(dialect) == []


@EVERY
def test_a_demonstration_is_what_the_template_writes_in_the_same_tokens(name: str) -> None:
    dialect, trajectory = DIALECTS[name], demonstrate(name)
    assert trajectory.well_formed
    assert trajectory.answer == "Oslo"
    *_, final = trajectory.segments
    text = "".join(segment.text for segment in trajectory.segments[:-1])
    assert text == render_by_template(name)
    assert dialect.tokenizer.decode(trajectory.ids) == text + final.text
    assert dialect.tokenizer.encode(text, add_special_tokens=False) == [
        i for segment in trajectory.segments[:-1] for i in segment.ids
    ]
    ends = [s.ids[-1] for s in trajectory.segments if s.author is Author.POLICY]
    family = CALL_FAMILIES[name]
    assert dialect.tokenizer.decode(ends) == family.end + family.family.end


def test_the_table_of_the_lab_notes_is_current() -> None:
    """`python scripts/call_format_table.py --write` writes it."""
    text = (DOCS / "lab-notes" / "call-formats.md").read_text("utf-8")
    assert make_table() in text


def test_the_page_shows_what_is_printed() -> None:
    text = (DOCS / "your-model.md").read_text("utf-8")
    why = "the chat template of my-model writes tool calls in the format mistral"
    assert DIALECTS["Magistral"].template_format == "mistral"
    assert DialectChoice(name="auto", why=why).message in text


@EVERY
def test_several_calls_of_a_template_with_one_are_refused(name: str) -> None:
    if CALL_FAMILIES[name].is_single:
        with pytest.raises(UserError, match="makes one call in a turn, not 2"):
            DIALECTS[name].render_calls(CALLS)
    else:
        assert DIALECTS[name].parse([DIALECTS[name].render_calls(CALLS)]) == CALLS


def test_templates_of_hermes_and_without_calls_are_those_of_hermes() -> None:
    for family, call_format in ((QWEN_HERMES, "hermes"), (CALL_FAMILIES["Gemma 3"].family, "")):
        tokenizer = family.tokenizer()
        if not call_format:
            tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        auto, hermes = (make_dialect(n, tokenizer, "Go.") for n in ("auto", "hermes"))
        assert auto.template_format == call_format
        assert auto.tags == hermes.tags
        assert auto.stop_strings == ()
        assert auto.encode_prompt("Who?", TOOLS) == hermes.encode_prompt("Who?", TOOLS)
        turn = auto.render_thought("T") + auto.render_calls(CALLS)
        assert turn == hermes.render_thought("T") + hermes.render_calls(CALLS)
        assert auto.parse([turn]) == CALLS
        assert auto.encode_turn(turn) == hermes.encode_turn(turn)
        for place in locate_observations(CALLS):
            assert auto.encode_observation("x", place) == hermes.encode_observation("x", place)
        answer = auto.render_answer_opening("<think>\nT") + "Oslo}"
        assert answer == hermes.render_answer_opening("<think>\nT") + "Oslo}"
        assert auto.is_well_formed([turn, "\\boxed{Oslo}"])
        assert auto.summary_prompt == hermes.summary_prompt


@EVERY
def test_the_prompt_shows_tools_or_describes_them(name: str) -> None:
    dialect = DIALECTS[name]
    prompt = dialect.tokenizer.decode(dialect.encode_prompt("Who?", TOOLS))
    assert '"search"' in prompt
    assert "Who?" in prompt
    if not tools_of(name):  # its template shows none
        assert dialect.layout is not None
        example = ToolCall("name_of_the_tool", {"name_of_an_argument": "its value"})
        assert dialect.render_call(example) in prompt


@EVERY
def test_a_chain_is_folded_between_its_turns(name: str) -> None:
    dialect = DIALECTS[name]
    steps: list[DemoStep] = [CALLS[0], Observation("x"), Thought("Oslo.", ThoughtRole.SUMMARY)]
    trajectory = encode_demonstration(TASK, [*steps, Answer("Oslo")], dialect, tools_of(name))
    assert trajectory.well_formed
    assert trajectory.answer == "Oslo"
    request = trajectory.segments[3].text
    opening = {"gpt-oss": "<|channel|>final<|message|>", "cohere": "<|START_RESPONSE|>"}
    expected = opening.get(dialect.template_format, SUMMARY_INSTRUCTION)
    assert request.startswith("<|START_TEXT|>" if "text tags" in name else expected)
    assert request.endswith("<summary>\n")
    assert dialect.tokenizer.decode(trajectory.ids) == "".join(s.text for s in trajectory.segments)


@pytest.mark.parametrize("name", ["gpt-oss", "gpt-oss, recipient in the channel"])
def test_other_dialects_refuse_a_model_that_answers_in_channels(name: str) -> None:
    with pytest.raises(UserError, match="which at most the dialect auto supports"):
        make_dialect("hermes", CALL_FAMILIES[name].tokenizer())


# -- results --------------------------------------------------------------------------------------


def test_results_are_escaped_where_the_template_does() -> None:
    block = DIALECTS["gpt-oss"].render_observation('a "b"\nc\\')
    assert '<|message|>"a \\"b\\"\\nc\\\\"<|end|>' in block
    assert 'a "b"\nc\\<|im_end|>' in DIALECTS["Qwen3-Coder"].render_observation(
        'a "b"\nc\\'
    ).replace("\n</tool_response>", "")


def test_the_id_that_the_policy_wrote_returns_with_the_result() -> None:
    dialect = DIALECTS["Mistral 7B"]
    listed = '[{"name": "look", "arguments": {}, "id": "abc123XYZ"}]'
    parsed = dialect.parse([f"[TOOL_CALLS] {listed}</s>"])
    assert isinstance(parsed, tuple)
    [place] = locate_observations(parsed)
    assert '"call_id": "abc123XYZ"}' in dialect.render_observation("x", place)
    named = DIALECTS["Mistral Small 3.2"].parse(["[TOOL_CALLS]look[CALL_ID]abc123XYZ[ARGS]{}"])
    assert isinstance(named, tuple)
    assert isinstance(named[0], ToolCall)
    assert named[0].call_id == "abc123XYZ"


@pytest.mark.parametrize("label", ["x<|end|>", "a b", "<|start|>system", "", "\n", "é" * 65])
def test_a_label_of_the_policy_forges_no_tag(label: str) -> None:
    for call in (ToolCall(label, {}, label), MalformedCall("no", label)):
        for name in ("gpt-oss", "Gemma 4", "Mistral 7B"):
            place = ObservationPosition(0, 1, (call,))
            opening, closing = DIALECTS[name].observation_delimiters(place)
            named = {"gpt-oss": "functions.unknown to", "Gemma 4": "response:unknown{"}
            assert named.get(name, "") in opening
            assert name != "Mistral 7B" or '"call00001"' in closing
