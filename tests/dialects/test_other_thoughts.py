"""A draft in a thought of any model is never the answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from dialect_parts import ACTING, action_of
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.chat import ChatRenderer
from fieldcraft.dialects.marked_answers import find_last_boxed
from fieldcraft.dialects.thought_parser import (
    split_reasoning,
    strip_draft_thoughts,
    strip_foreign_thoughts,
)
from fieldcraft.types import Answer

TOKENIZER = tiny_tokenizer()
NAMES = sorted({*ACTING, "toolrl"})
DIALECT_OF = {name: make_dialect(name, TOKENIZER, instruction="") for name in NAMES}
FINAL = "<|start|>assistant<|channel|>final<|message|>"
FORMS = [
    *((f"<{tag}>", f"</{tag}>") for tag in ("thinking", "thought", "Thought", "reasoning")),
    *((f"<{tag}>", f"</{tag}>") for tag in ("Think", "scratchpad", "analysis", "seed:think")),
    ("[THINK]", "[/THINK]"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis<|message|>", f"<|end|>{FINAL}"),
]
DRAFTS = ["\\boxed{Rome}", "<answer> Rome </answer>", "It is \\boxed{Rome}.", "Rome?"]
form = st.sampled_from(FORMS)
draft = st.sampled_from(DRAFTS)
gap = st.sampled_from(["", "\n", " \n\n"])


@settings(deadline=None)
@given(form=form, draft=draft, gap=gap, times=st.integers(1, 3))
@pytest.mark.parametrize("name", NAMES)
def test_the_answer_stands_behind_the_thought(name, form, draft, gap, times):
    dialect = DIALECT_OF[name]
    opening, closing = form
    thought = f"{opening}{gap}So {draft}{gap}{closing}{gap}" * times
    answer = dialect.render_answer("Oslo")
    prefilled = thought.removeprefix(opening)
    assert dialect.parse([thought + answer]) == Answer("Oslo")
    if times == 1:
        assert dialect.parse([prefilled + answer]) == Answer("Oslo")


@settings(deadline=None)
@given(form=form, draft=draft, gap=gap)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "autocoa"])
def test_a_thought_that_never_ends_says_nothing(name, form, draft, gap):
    found = DIALECT_OF[name].parse([f"{form[0]}{gap}So {draft}"])
    assert not isinstance(found, Answer)


@given(form=form, draft=st.sampled_from(DRAFTS[:3]), gap=gap, ends=st.booleans())
def test_a_draft_further_on_is_no_answer(form, draft, gap, ends):
    thought = f"{form[0]}{gap}{draft}{gap}{form[1] if ends else ''}"
    parse = DIALECT_OF["hermes"].parse
    assert find_last_boxed(f"It is. {thought}") is None
    assert "Rome" not in strip_draft_thoughts(f"It is. {thought} So")
    assert parse([f"Hm. {thought}"]) == Answer("Hm.") or ends
    assert parse([f"Hm. \\boxed{{Oslo}} {thought}"]) == Answer("Oslo")
    if ends:
        assert parse([f"Hm. {thought} \\boxed{{Oslo}}"]) == Answer("Oslo")


@given(form=form, text=st.sampled_from(["7", "x y", "<b>7</b>"]), gap=gap)
def test_a_chat_says_what_follows_its_thought(form, text, gap):
    chat = ChatRenderer(DIALECT_OF["hermes"])
    thought = f"{form[0]}{gap}Or \\boxed{{8}}{gap}{form[1]}{gap}"
    assert chat.strip_turn(thought + text) == text
    assert chat.strip_turn(f"{form[0]}{gap}{text}") == ""
    reasoning, reply = split_reasoning(thought + text)
    assert "8" in reasoning
    assert reply.strip() == text


@given(text=st.text(alphabet="<>/[]|thinkTHINK \u25c1\u25b7"), form=form)
def test_any_text_has_an_end_of_its_thoughts(text, form):
    rest = strip_foreign_thoughts(text)
    assert rest is None or text.endswith(rest)
    assert strip_foreign_thoughts(f"{form[0]}{text}") is None or form[1][:3] in text


@given(form=form)
@pytest.mark.parametrize("name", ACTING)
def test_a_mark_in_a_call_ends_no_thought(name, form):
    dialect = DIALECT_OF[name]
    action = action_of(name, f"x {form[1]} y")
    assert dialect.parse([dialect.render_call(action)]) == (action,)


@pytest.mark.parametrize(
    "sign", [" ", "\n", "<thinking>", "<thinking></thinking>", "\\boxed{", "*"]
)
def test_long_texts_are_read_in_their_length(sign):
    """The time is linear in the length; a quadratic pattern takes minutes here."""
    text = sign * 100_000
    assert len(strip_draft_thoughts(text)) <= len(text)
    strip_foreign_thoughts(text[:20_000])
