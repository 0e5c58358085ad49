"""Which pairs come of a question that was tried both ways, and where they split."""

import asyncio
from dataclasses import replace

import pytest

from fieldcraft.agents.prompted import Attempt, End
from fieldcraft.data.contrast import (
    LUCKY,
    NO_ACTION,
    NO_GUESS,
    NOT_KNOWN,
    contrast,
    split,
    with_share,
)
from fieldcraft.data.grading import Grader
from fieldcraft.data.steps_io import StepPair
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.types import Action, Answer, Observation, Step, Task, Thought

TASK = Task("t", "where?", ("Oslo",))
SEARCH = Action("search", {"query": "river"})
FOUND = (Observation("Oslo"), Answer("Oslo"))


def thought(answer: str, text: str = "I think so.") -> Attempt:
    return graded(Thought(text), Answer(answer))


def acted(answer: str, text: str = "It has a river. Which one? I look.") -> Attempt:
    return graded(Thought(text), SEARCH, Observation("..."), Answer(answer))


def graded(*steps: Step) -> Attempt:
    right = asyncio.run(Grader(ExactMatch()).right(TASK, steps))
    return Attempt(steps, End.ANSWERED, right=right)


def ungraded(attempt: Attempt) -> Attempt:
    return replace(attempt, right=None)


CUT = Attempt((), End.CUT)


def test_acting_where_it_was_needed() -> None:
    pair = contrast(TASK, [CUT, thought("Rome"), thought("Paris")], [acted("Bonn"), acted("Oslo")])
    assert pair == StepPair(
        TASK,
        before=(Thought("It has a river. Which one?"),),
        chosen=(Thought("I look."), SEARCH),
        rejected=(Thought("I think so."), Answer("Rome")),
    )
    assert pair.acts


def test_thinking_where_an_action_was_needless() -> None:
    for answer in ("Oslo", "Rome"):
        pair = contrast(TASK, [thought("oslo.")], [thought("Oslo"), acted(answer)])
        assert pair == StepPair(
            TASK,
            before=(Thought("It has a river. Which one?"),),
            chosen=(Thought("I think so."), Answer("oslo.")),
            rejected=(Thought("I look."), SEARCH),
        )


@pytest.mark.parametrize(
    ("thinking", "acting", "reason"),
    [
        ([thought("Oslo")], [thought("Oslo")], NO_ACTION),
        ([thought("Rome"), thought("Oslo")], [acted("Oslo")], LUCKY),
        ([thought("Rome")], [acted("Rome"), CUT], NOT_KNOWN),
        ([thought("Rome")], [thought("Oslo")], NOT_KNOWN),  # right without acting shows nothing
        ([CUT, CUT], [acted("Oslo")], NO_GUESS),
        ([ungraded(thought("Rome"))], [acted("Oslo")], NO_GUESS),  # not known to be wrong
        ([thought("Rome")], [ungraded(acted("Oslo"))], NOT_KNOWN),
    ],
)
def test_no_pair(thinking: list[Attempt], acting: list[Attempt], reason: str) -> None:
    assert contrast(TASK, thinking, acting) == reason


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
    assert split((Thought(text), SEARCH, *FOUND)) == (
        (Thought(before),) if before else (),
        (Thought(sentence), SEARCH),
    )


def test_an_action_without_a_thought() -> None:
    assert split((SEARCH, *FOUND)) == ((), (SEARCH,))


def test_the_share_of_thinking() -> None:
    act = StepPair(TASK, (), (SEARCH,), (Answer("Rome"),))
    think = StepPair(TASK, (), (Answer("Oslo"),), (SEARCH,))
    found = [think, act, think, act, think, act]
    assert with_share(found, 0.25) == [think, act, act, act]  # 1 of 4
    assert with_share(found, 0.5) == found
    assert with_share(found, 0.24) == [act, act, act]
    assert with_share([think], 0.9) == []
