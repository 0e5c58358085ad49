"""The dialect hermes with chat templates that do not support tools, and without a template."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from families import FAMILIES, IM, Family, chatml
from fieldcraft.dialects import check_round_trip
from fieldcraft.dialects.chat_template import find_turn_end
from fieldcraft.dialects.encoding import encode_demonstration
from fieldcraft.dialects.hermes import HermesDialect, describe_tools, make_fallback_delimiters
from fieldcraft.types import (
    Answer,
    Author,
    DemoStep,
    Observation,
    ObservationPosition,
    Task,
    Thought,
    ToolCall,
)

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {
    "name": "population",
    "description": "How many live in a city.",
    "parameters": PARAMETERS,
}
TOOL = {"type": "function", "function": FUNCTION}
CALL = ToolCall("population", {"city": "Turin"})
TASK = Task("t", "How many live in Turin?", ("850",))
SHOWN: list[DemoStep] = [Thought("I ask."), CALL, Observation("850 <|im_end|></s>"), Answer("850")]
BASE = replace(FAMILIES["smollm2"], template="")
EVERY = pytest.mark.parametrize("family", [*FAMILIES.values(), BASE], ids=[*FAMILIES, "base"])


def speak(family: Family, **settings: Any) -> HermesDialect:
    tokenizer = family.tokenizer()
    if not family.template:
        tokenizer.chat_template = None
    return HermesDialect(tokenizer, eos_ids=family.ends(tokenizer), **settings)


def with_template(template: str) -> HermesDialect:
    return speak(Family(template, IM, "<|im_end|>", ("<|im_end|>",), "<|im_end|>"))


def prompt(dialect: HermesDialect, tools: Sequence[dict[str, Any]] = (TOOL,)) -> str:
    return dialect.tokenizer.decode(dialect.encode_prompt(TASK.question, tools))


SYSTEM = f"""\
<|im_start|>system
You can call tools. Each line between <tools> and </tools> describes one of them as JSON:
<tools>
{json.dumps(TOOL)}
</tools>

A call is JSON with the name of a tool and its arguments, between <tool_call> and </tool_call>:
<tool_call>
{{"name": "<name of the tool>", "arguments": {{"<name of an argument>": "<its value>"}}}}
</tool_call>

The results of your calls then follow, each between <tool_response> and </tool_response>.<|im_end|>
"""
USER = "<|im_start|>user\nHow many live in Turin?<|im_end|>\n<|im_start|>assistant\n"


def test_smollm2_reads_its_tools_in_the_system_message() -> None:
    assert prompt(speak(FAMILIES["smollm2"], instruction="")) == SYSTEM + USER


def test_a_system_prompt_of_the_recipe_stands_before_the_tools() -> None:
    dialect = speak(FAMILIES["smollm2"], instruction="", system_prompt="You help.")
    assert prompt(dialect) == SYSTEM.replace("You can", "You help.\n\nYou can", 1) + USER


def test_without_tools_the_template_is_left_alone() -> None:
    assert prompt(speak(FAMILIES["smollm2"], instruction=""), []) == USER
    default = FAMILIES["qwen2.5"]
    assert prompt(speak(default, instruction=""), []).startswith("<|im_start|>system\nYou are a")


@EVERY
def test_every_family_is_shown_its_tools_once(family: Family) -> None:
    dialect = speak(family)
    text = prompt(dialect)
    assert text.count(json.dumps(TOOL)) == 1
    assert text.index(json.dumps(TOOL)) < text.index("Answer the question") < text.index("Turin?")


NO_PLACE = {
    "refuses it": "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}",
    "does not show it": "{% set messages = messages | rejectattr('role', 'eq', 'system') %}",
    "lets the model say it": "",
}


@pytest.mark.parametrize("name", NO_PLACE)
def test_a_template_without_system_messages_has_the_tools_in_the_first_message(name: str) -> None:
    template = chatml()
    if name == "lets the model say it":
        template = FAMILIES["mistral"].template.replace("eos_token", "'<|im_end|>'")
    text = prompt(with_template(NO_PLACE[name] + template))
    head, _, question = text.partition(describe_tools([TOOL]))
    assert head in ("<|im_start|>user\n", "[INST]")
    assert question.startswith("\n\nAnswer the question below.")


@EVERY
def test_a_turn_with_its_results_is_what_the_template_writes(family: Family) -> None:
    """The turn ends once, then the template's own text follows, with the result as a message."""
    dialect = speak(family)
    if dialect.tokenizer.chat_template is None:
        block = dialect.render_observation("850")
        assert block == "\n<tool_response>\n850\n</tool_response>\n"
        return
    turn = dialect.render_calls([CALL])
    question = {"role": "user", "content": "Who?"}
    called = {"role": "assistant", "content": turn}
    result = {"role": "user", "content": "<tool_response>\n850\n</tool_response>"}
    text = dialect.render_conversation([question, called, result])
    _, _, behind = text.rpartition(turn)
    assert dialect.turn_end.text + dialect.render_observation("850") == dialect.strip_think_prefill(
        behind.lstrip()
    )


@EVERY
def test_several_results_stand_in_one_message(family: Family) -> None:
    dialect = speak(family)
    first, second = (
        dialect.render_observation(text, ObservationPosition(i, 2)) for i, text in enumerate("ab")
    )
    assert first + second == dialect.render_observation("a\n</tool_response>\n<tool_response>\nb")


NAMES_TOOLS = "{% if m.role == 'tool' %}{{ '<|im_start|>tool\n' + m.content + '<|im_end|>\n' }}"


def test_a_template_that_has_the_role_of_tools_gets_results_in_it() -> None:
    template = chatml().replace("%}{{ '<|im", "%}" + NAMES_TOOLS + "{% else %}{{ '<|im", 1)
    dialect = with_template(template.replace("{% endfor %}", "{% endif %}{% endfor %}", 1))
    one, two = (
        f"<|im_start|>tool\n<tool_response>\n{text}\n</tool_response><|im_end|>\n" for text in "ab"
    )
    assert dialect.render_observation("a") == f"\n{one}<|im_start|>assistant\n"
    both = [
        dialect.render_observation(text, ObservationPosition(i, 2)) for i, text in enumerate("ab")
    ]
    assert "".join(both) == f"\n{one}{two}<|im_start|>assistant\n"


def test_a_role_of_tools_that_changes_results_is_not_used() -> None:
    """Llama 3 writes results as JSON."""
    template = chatml().replace(
        "m.content", "(m.content | tojson if m.role == 'tool' else m.content)"
    )
    assert "<|im_start|>user\n<tool_response>\na\n" in with_template(template).render_observation(
        "a"
    )


@EVERY
def test_what_is_trained_is_what_is_sampled(family: Family) -> None:
    """Segments of a demonstration end at the ends of turns, and are read back unchanged."""
    dialect = speak(family)
    trajectory = encode_demonstration(TASK, SHOWN, dialect, [TOOL])
    authors = [segment.author for segment in trajectory.segments]
    assert authors == [Author.PROMPT, Author.POLICY, Author.TOOL, Author.POLICY]
    calling, answering = (s for s in trajectory.segments if s.author is Author.POLICY)
    for segment in (calling, answering):
        assert segment.ids[-1] == dialect.turn_end.token_id
        assert sum(i in dialect.turn_end.ids for i in segment.ids) == 1
    assert dialect.parse([calling.text]) == (CALL,)
    assert dialect.parse([answering.text]) == Answer("850")
    result = trajectory.segments[2]
    assert dialect.tokenizer.decode(result.ids) == result.text
    assert "850 <|im_end|></s>" in result.text
    assert trajectory.well_formed


@EVERY
def test_no_family_is_refused(family: Family) -> None:
    assert check_round_trip(speak(family)) == []


@settings(deadline=None)
@given(st.lists(st.sampled_from(["<|im_end|>", "</tool_response>", "<tool_call>", "x", "\n"])))
def test_a_result_forges_nothing(pieces: list[str]) -> None:
    text = "".join(pieces)
    ids = SMOL.encode_observation(text)
    assert SMOL.tokenizer.decode(ids) == SMOL.render_observation(text)
    special = [i for i in ids if i in SMOL.tokenizer.all_special_ids]
    frame = SMOL.encode_observation("")
    assert special == [i for i in frame if i in SMOL.tokenizer.all_special_ids]


SMOL = speak(FAMILIES["smollm2"])


ODD = {
    "words alone": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "lines": "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}",
    "calls in another form": "{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call><function={{ c.function.name }}></tool_call>"
    "{% endfor %}{% endfor %}",
    "calls as text": "{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ 'call ' + c.function.arguments }}{% endfor %}"
    "{% endfor %}",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_templates_are_used_as_they_are(name: str) -> None:
    dialect = with_template(ODD[name])
    assert not dialect.writes_calls
    assert describe_tools([TOOL]) in prompt(dialect)
    assert "<tool_response>\na\n</tool_response>" in dialect.render_observation("a")
    trajectory = encode_demonstration(TASK, SHOWN, dialect, [TOOL])
    ends = [a.ids[-1] for a, b in pairwise(trajectory.segments) if b.author is Author.TOOL]
    assert ends == [find_turn_end(dialect.tokenizer).token_id]


def test_a_template_for_tools_is_used_as_before() -> None:
    dialect = HermesDialect(tiny_tokenizer())
    assert dialect.writes_calls
    assert describe_tools([TOOL]) not in prompt(dialect)
    assert dialect.call_delimiters != make_fallback_delimiters(
        dialect
    )  # the template's own role does not join results


def test_a_template_of_several_names_is_asked_for_the_one_with_tools() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = {"default": chatml(), "tool_use": tokenizer.chat_template}
    dialect = HermesDialect(tokenizer)
    assert dialect.writes_calls
    assert json.dumps(TOOL) in prompt(dialect)
