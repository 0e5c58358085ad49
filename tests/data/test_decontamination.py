"""Evaluation questions are found in the training data."""

import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.data.decontamination import (
    MIN_WORDS,
    NEAR_DUPLICATE_SIMILARITY,
    EvaluationQuestions,
    QuestionMatch,
    make_shingles,
    normalise_text,
)
from fieldcraft.types import Task


def task(question: str, identity: str = "", *answers: str) -> Task:
    return Task(identity or f"id of {question}", question, answers)


QUESTION = "Where was the painter Ada Lind born?"


@pytest.mark.parametrize(
    "trained",
    [
        task(QUESTION),
        task("  where was the painter ADA LIND born"),
        task("Where was the painter A\u0301da Lind born?"),
        task("In which town did Ada Lind first see light?", "q17"),
    ],
)
def test_the_same_words_or_the_same_id_are_the_same_question(trained: Task) -> None:
    assert trained in EvaluationQuestions([task(QUESTION, "q17")])


def test_questions_that_share_no_more_than_an_id_are_told_apart() -> None:
    questions = EvaluationQuestions([task(QUESTION, "q17")])
    other = task("Who painted the harbour of Northport?", "q17")
    assert questions.find_same_ids([other, task(QUESTION, "q17"), task(QUESTION)]) == [
        QuestionMatch(other.question, QUESTION)
    ]


@pytest.mark.parametrize("identity", ["17", "0", "train_17", "test-17", "dev17", "17#2"])
def test_the_place_in_a_file_is_no_id(identity: str) -> None:
    """Every file counts its records from the start."""
    questions = EvaluationQuestions([task(QUESTION, identity)])
    assert task("Who painted the harbour of Northport?", identity) not in questions
    assert task(QUESTION, identity) in questions


def test_signs_of_mathematics_tell_questions_apart() -> None:
    questions = EvaluationQuestions([task("Is 5 > 3?")])
    assert task("Is 5 < 3?") not in questions
    assert task("is 5 > 3") in questions


def test_a_question_that_is_alike_with_the_same_answer_is_a_near_duplicate() -> None:
    questions = EvaluationQuestions([task(QUESTION, "a", "Northport", "North Port"), task("Why?")])
    near = "Where was the painter Ada Lind borne?"
    assert questions.find_near_duplicates([task(near, "b", "the Northport")]) == [
        QuestionMatch(near, QUESTION)
    ]
    assert questions.find_near_duplicates([task(near, "b", "Southport")]) == []
    assert questions.find_near_duplicates([task(near, "b")]) == []
    assert questions.find_near_duplicates([task("Who painted it?", "b", "Northport")]) == []


texts = st.text(alphabet="ab ", min_size=0, max_size=24)


@given(st.lists(texts, max_size=8), st.lists(texts, max_size=8))
def test_all_near_duplicates_are_found(questions: list[str], trained: list[str]) -> None:
    def alike(one: str, other: str) -> bool:
        first, second = (make_shingles(normalise_text(text)) for text in (one, other))
        return len(first & second) >= NEAR_DUPLICATE_SIMILARITY * len(first | second)

    questions, trained = (
        [text for text in some if len(text.split()) < MIN_WORDS] for some in (questions, trained)
    )
    found = EvaluationQuestions([task(text) for text in questions]).find_near_duplicates(
        map(task, trained)
    )
    trained = [t for t in trained if normalise_text(t) not in map(normalise_text, questions)]
    expected = [
        (t, next(a for a in questions if alike(t, a)))
        for t in trained
        if any(alike(t, a) for a in questions)
    ]
    assert found == expected


@pytest.mark.parametrize(
    "around", ["Question: {}", "Answer the question below. Think first.\n\nQuestion: {}\nAnswer:"]
)
def test_a_question_inside_of_a_prompt_is_a_near_duplicate(around: str) -> None:
    questions = EvaluationQuestions([task(QUESTION, "a", "Northport")])
    prompt = around.format(QUESTION)
    assert questions.find_near_duplicates([task(prompt, "b", "Northport")]) == [
        QuestionMatch(prompt, QUESTION)
    ]
    assert questions.find_near_duplicates([task(prompt, "b")]) == [QuestionMatch(prompt, QUESTION)]
    assert questions.find_near_duplicates([task(prompt, "b", "Southport")]) == []


@given(st.permutations(QUESTION.split()))
def test_a_question_of_the_same_words_in_another_order_is_a_near_duplicate(
    order: list[str],
) -> None:
    questions = EvaluationQuestions([task(QUESTION, "a", "Northport")])
    other = " ".join(order)
    expected = [] if order == QUESTION.split() else [QuestionMatch(other, QUESTION)]
    if normalise_text(other) != normalise_text(QUESTION):
        assert questions.find_near_duplicates([task(other, "b", "Northport")]) == expected
        assert questions.find_near_duplicates([task(other, "b", "Southport")]) == []
    fewer = " ".join(order[1:3])
    assert questions.find_near_duplicates([task(fewer, "b", "Northport")]) == []


@given(text=st.text(), times=st.integers(1, 3))
def test_entities_are_what_they_stand_for(text: str, times: int) -> None:
    escaped = text
    for _ in range(times):
        escaped = html.escape(escaped)
    assert normalise_text(escaped) == normalise_text(text)
    assert task(escaped, "b") in EvaluationQuestions([task(text, "a")])


@pytest.mark.parametrize(
    "written",
    [
        "Where was the painter &quot;Ada Lind&quot; born?",
        "Where was the painter Ada&nbsp;Lind born&#63;",
        "<p>Where was the painter <b>A</b>da Lind<br/>born?</p>",
        'Where was the painter <a href="x?y=1&amp;z">Ada Lind</a> born?',
        "Where was the painter &#x41;da Lind born?",
    ],
)
def test_markup_of_a_page_tells_no_questions_apart(written: str) -> None:
    questions = EvaluationQuestions([task(QUESTION, "a", "Northport")])
    assert task(written, "b") in questions
    prompt = f"Answer the question. Think first. Question: {written} Answer:"
    assert questions.find_near_duplicates([task(prompt, "b", "Northport")]) == [
        QuestionMatch(prompt, QUESTION)
    ]


@pytest.mark.parametrize("other", ["Is a > b or b < a?", "Is a b or b a?", "Is a a?"])
def test_signs_of_mathematics_are_no_tags(other: str) -> None:
    assert task(other) not in EvaluationQuestions([task("Is a<b or b>a?")])


def test_a_short_question_is_not_looked_for_in_others() -> None:
    questions = EvaluationQuestions([task("Where is it?", "a", "Northport")])
    assert (
        questions.find_near_duplicates([task("The town: where is it? Say.", "b", "Northport")])
        == []
    )
