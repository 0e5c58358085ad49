"""Rewards of AFM, ToRL, ReTool and ToolRL, by numbers worked out by hand."""

from typing import Any

import pytest

from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.rewards.code_agents import AnswerFormat, Executable, PlusMinus, ToolRL
from fieldcraft.types import Call, Outcome, Status, Task, Trajectory, UserError

TASK = Task("q", "6 * 7?", ("42",))


def answered(answer: str | None, well_formed: bool = True, task: Task = TASK) -> Trajectory:
    return Trajectory(task, status=Status.ANSWERED, answer=answer, well_formed=well_formed)


def test_answer_times_format() -> None:
    group = [
        *(answered("42"), answered("42", well_formed=False), answered("41"), answered(None)),
        answered("42", task=Task("q", "?", ())),
    ]
    assert AnswerFormat(ExactMatch())(group) == [1.0, 0.0, 0.0, 0.0, None]


def test_plus_and_minus_one() -> None:
    group = [
        answered("42"),
        answered("41"),
        answered(None),
        answered("42", task=Task("q", "?", ())),
    ]
    assert PlusMinus(ExactMatch())(group) == [1.0, -1.0, -1.0, None]


@pytest.mark.parametrize(
    ("outcomes", "score"),
    [
        ([], 0.0),
        ([Outcome.OK], 0.0),
        ([Outcome.OK, Outcome.FAILED], -1.0),
        ([Outcome.MALFORMED], -1.0),
        ([Outcome.FAILED, Outcome.FAILED], -1.0),
        ([Outcome.UNAVAILABLE, Outcome.REFUSED], 0.0),
    ],
)
def test_executable(outcomes: list[Outcome], score: float) -> None:
    calls = [Call("python", {"code": "x"}, "", outcome, 0.0) for outcome in outcomes]
    assert Executable()([Trajectory(TASK, calls=calls)]) == [score]


def toolrl(wanted: Any, made: list[tuple[str, dict[str, Any]]]) -> float | None:
    calls = [Call(name, arguments, "", Outcome.OK, 0.0) for name, arguments in made]
    meta = {} if wanted is None else {"calls": wanted}
    [score] = ToolRL()([Trajectory(Task("q", "?", (), meta), calls=calls)])
    return score


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


AB = call("f", a=1, b="x")


@pytest.mark.parametrize(
    ("wanted", "made", "score"),
    [
        (None, [], None),
        ([], [("f", {})], 0.0),
        ([AB], [("f", {"a": 1, "b": "x"})], 3.0),
        ([AB], [], -3.0),
        ([AB], [("g", {"a": 1, "b": "x"})], -3.0),
        # names 1, keys {a} of {a, b} 1/2, values 1: 6 * 2.5 / 4 - 3
        ([AB], [("f", {"a": 1})], 0.75),
        # names 1, keys 1, one of two values: 6 * 3 / 4 - 3
        ([AB], [("f", {"a": 1, "b": "y"})], 1.5),
        # names 1/2 (a call too many), keys 1, values 2: 6 * 3.5 / 4 - 3
        ([AB], [("f", {"a": 1, "b": "x"}), ("g", {})], 2.25),
        # the same name twice: 1 + 2 keys + 2 values of S = 1 + 2 + 2, in either order
        ([call("f", a=1), call("f", a=2)], [("f", {"a": 2}), ("f", {"a": 1})], 3.0),
        # names 1/2, one of two calls: 1/2 + 1 + 1 of 5
        ([call("f", a=1), call("f", a=2)], [("f", {"a": 2})], 0.0),
        ([call("f")], [("f", {})], 3.0),
        ([AB], [("", {})], -3.0),  # could not be read
        ([AB], [("f", {"a": 1, "b": "x"}), ("", {})], -3.0),
    ],
)
def test_toolrl(wanted: Any, made: list[tuple[str, dict[str, Any]]], score: float | None) -> None:
    assert toolrl(wanted, made) == (None if score is None else pytest.approx(score))


def test_wanted_calls_of_another_form_are_refused() -> None:
    with pytest.raises(UserError, match="wanted calls of task 'q' cannot be read"):
        toolrl([{"tool": "f"}], [])
