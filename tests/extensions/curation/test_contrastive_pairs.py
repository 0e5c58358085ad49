"""Pairs from a question that was tried both ways, and the position at which they split."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.config.collection import CollectConfig
from fieldcraft.data.grading import Grader
from fieldcraft.data.steps_io import ContrastivePair
from fieldcraft.extensions.curation.attempts import select_pairs
from fieldcraft.extensions.curation.pairs import (
    LATE_SUCCESS,
    NEITHER_CORRECT,
    NO_CALL,
    NO_WRONG_ANSWER,
    cap_thinking_share,
    make_pair,
    split_at_first_call,
)
from fieldcraft.extensions.curation.react_agent import AgentAttempt, AttemptStatus
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.types import Answer, DemoStep, Observation, Task, Thought, ToolCall

TASK = Task("t", "where?", ("Oslo",))
SEARCH = ToolCall("search", {"query": "river"})
FOUND = (Observation("Oslo"), Answer("Oslo"))


def thought(answer: str, text: str = "I think so.") -> AgentAttempt:
    return graded(Thought(text), Answer(answer))


def acted(answer: str, text: str = "It has a river. Which one? I look.") -> AgentAttempt:
    return graded(Thought(text), SEARCH, Observation("..."), Answer(answer))


def graded(*steps: DemoStep) -> AgentAttempt:
    right = asyncio.run(Grader(ExactMatch()).grade(TASK, steps))
    return AgentAttempt(steps, AttemptStatus.ANSWERED, is_correct=right)


def ungraded(attempt: AgentAttempt) -> AgentAttempt:
    return replace(attempt, is_correct=None)


CUT = AgentAttempt((), AttemptStatus.TRUNCATED)


def test_acting_where_it_was_needed() -> None:
    pair = make_pair(TASK, [CUT, thought("Rome"), thought("Paris")], [acted("Bonn"), acted("Oslo")])
    assert pair == ContrastivePair(
        TASK,
        before=(Thought("It has a river. Which one?"),),
        chosen=(Thought("I look."), SEARCH),
        rejected=(Thought("I think so."), Answer("Rome")),
    )
    assert pair.chooses_tool


def test_thinking_where_an_action_was_needless() -> None:
    for answer in ("Oslo", "Rome"):
        pair = make_pair(TASK, [thought("oslo.")], [thought("Oslo"), acted(answer)])
        assert pair == ContrastivePair(
            TASK,
            before=(Thought("It has a river. Which one?"),),
            chosen=(Thought("I think so."), Answer("oslo.")),
            rejected=(Thought("I look."), SEARCH),
        )


@pytest.mark.parametrize(
    ("thinking", "acting", "reason"),
    [
        ([thought("Oslo")], [thought("Oslo")], NO_CALL),
        ([thought("Rome"), thought("Oslo")], [acted("Oslo")], LATE_SUCCESS),
        ([thought("Rome")], [acted("Rome"), CUT], NEITHER_CORRECT),
        (
            [thought("Rome")],
            [thought("Oslo")],
            NEITHER_CORRECT,
        ),  # a correct answer without acting proves nothing
        ([CUT, CUT], [acted("Oslo")], NO_WRONG_ANSWER),
        ([ungraded(thought("Rome"))], [acted("Oslo")], NO_WRONG_ANSWER),  # not known to be wrong
        ([thought("Rome")], [ungraded(acted("Oslo"))], NEITHER_CORRECT),
    ],
)
def test_no_pair(thinking: list[AgentAttempt], acting: list[AgentAttempt], reason: str) -> None:
    assert make_pair(TASK, thinking, acting) == reason


@pytest.mark.parametrize(
    ("text", "before", "sentence"),
    [
        ("One. Two.", "One.", "Two."),
        ("One.\nTwo", "One.", "Two"),
        ("No end", "", "No end"),
        ("One?  Two!\n\n", "One?", "Two!"),
        ("Version 2.5 is out.", "", "Version 2.5 is out."),
    ],
)
def test_the_split_is_before_the_last_sentence(text: str, before: str, sentence: str) -> None:
    assert split_at_first_call((Thought(text), SEARCH, *FOUND)) == (
        (Thought(before),) if before else (),
        (Thought(sentence), SEARCH),
    )


def test_an_action_without_a_thought() -> None:
    assert split_at_first_call((SEARCH, *FOUND)) == ((), (SEARCH,))


def test_the_share_of_thinking() -> None:
    act = ContrastivePair(TASK, (), (SEARCH,), (Answer("Rome"),))
    think = ContrastivePair(TASK, (), (Answer("Oslo"),), (SEARCH,))
    found = [think, act, think, act, think, act]
    assert cap_thinking_share(found, 0.25) == [think, act, act, act]  # 1 of 4
    assert cap_thinking_share(found, 0.5) == found
    assert cap_thinking_share(found, 0.24) == [act, act, act]
    assert cap_thinking_share([think], 0.9) == []


@given(st.integers(1, 60), st.floats(0.01, 0.99))
def test_the_targets_of_both_kinds_are_within_the_share(count: int, share: float) -> None:
    """With enough questions, no requested pair is missing."""
    acting = ContrastivePair(TASK, (), (SEARCH,), (Thought("x"),))
    thinking = ContrastivePair(TASK, (), (Thought("x"),), (SEARCH,))
    targets = CollectConfig(pairs=count, max_thinking_share=share).target_counts
    assert len(select_pairs([acting, thinking] * count, targets, share)) == count
