"""Answers in plain messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.marked_answers import split_marked_answer
from fieldcraft.extensions.formats.chat_messages import parse_chat
from fieldcraft.types import Answer, Thought

HERMES = make_dialect("hermes", tiny_tokenizer())
WAYS = [
    "\\boxed{{{}}}",
    "\\boxed{{\\text{{{}}}}}.",
    "<answer>{}</answer>",
    "<Answer> {} </Answer>",
    "<output>\n{}\n</output>",
    "<Output>{}</Output>",
    "<final_answer>{}</final_answer>",
    "Final Answer: {}",
    "**Final Answer:** {}",
    "**Final Answer: {}**",
    "### Final Answer\n\n{}",
    "**Answer:** {}",
    "Answer: {}.",
    "> **Answer**: **{}**",
    "The answer is {}.",
    "So the answer is: **{}**.",
    "Therefore, the final answer is {}",
    "The answer is: {}",
]
WAY = st.sampled_from(WAYS)
ANSWER = st.sampled_from(
    ["Oslo", "42", "-1.5", "New York", "3 km", "a_1", "J. R. R. Tolkien", "St. Louis", "U.S. Steel"]
)


@given(way=WAY, answer=ANSWER, before=st.sampled_from(["", "It lies in Norway.", "1. a\n2. b"]))
def test_an_answer_is_found_however_it_is_marked(way: str, answer: str, before: str) -> None:
    text = f"{before}\n\n{way.format(answer)}".strip()
    assert split_marked_answer(text) == (before, answer)
    assert HERMES.parse([f"<think>Or \\boxed{{Rome}}</think>{text}"]) == Answer(answer)
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]
    thoughts = [Thought(before)] if before else []
    assert parse_chat(messages).steps == [*thoughts, Answer(answer)]


@given(first=WAY, last=WAY, answer=ANSWER)
def test_a_draft_in_a_thought_marks_nothing(first: str, last: str, answer: str) -> None:
    thought = f"<thinking>\n{first.format('Rome')}\n</thinking>"
    assert HERMES.parse([f"{thought}\n{last.format(answer)}"]) == Answer(answer)
    content = f"<Thought>{first.format('Rome')}</Thought>\n{last.format(answer)}"
    found = parse_chat(
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": content}]
    )
    assert found.steps[-1] == Answer(answer)


@pytest.mark.parametrize(
    "text",
    [
        "Oslo",
        "The answer is not Oslo.",
        "The answer is Oslo. Or is it Rome?",
        "I doubt that the answer is Oslo.",
        "If the answer is Oslo, Rome is wrong",
        "Answer: Oslo\nBut that may be wrong.",
        "My answer depends on the question: which Oslo?",
        "<answer></answer>",
        "Final answer:",
        "",
    ],
)
def test_other_texts_mark_no_answer(text: str) -> None:
    assert split_marked_answer(text) is None


@given(text=st.text(alphabet="answer is:*\n.<>/The", max_size=40))
def test_what_is_found_stands_in_the_text(text: str) -> None:
    found = split_marked_answer(text)
    assert found is None or (found[1] in text and text.lstrip().startswith(found[0]))
