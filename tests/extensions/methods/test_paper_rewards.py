"""Rewards of AFM, ToRL, ReTool and ToolRL, by numbers worked out by hand."""

from typing import Any

import pytest

from fieldcraft.extensions.methods.afm import FormattedVerdictReward
from fieldcraft.extensions.methods.retool_torl import ExecutablePenalty, SignedVerdictReward
from fieldcraft.extensions.methods.toolrl import (
    ToolRLExactReward,
    ToolRLFormatReward,
    ToolRLReward,
)
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.types import CallOutcome, CallRecord, Status, Task, Trajectory, UserError

TASK = Task("q", "6 * 7?", ("42",))


def answered(answer: str | None, well_formed: bool = True, task: Task = TASK) -> Trajectory:
    return Trajectory(task, status=Status.ANSWERED, answer=answer, well_formed=well_formed)


def test_answer_times_format() -> None:
    group = [
        *(answered("42"), answered("42", well_formed=False), answered("41"), answered(None)),
        answered("42", task=Task("q", "?", ())),
    ]
    assert FormattedVerdictReward(ExactMatch())(group) == [1.0, 0.0, 0.0, 0.0, None]


def test_plus_and_minus_one() -> None:
    group = [
        answered("42"),
        answered("41"),
        answered(None),
        answered("42", task=Task("q", "?", ())),
    ]
    assert SignedVerdictReward(ExactMatch())(group) == [1.0, -1.0, -1.0, None]


@pytest.mark.parametrize(
    ("outcomes", "score"),
    [
        ([], 0.0),
        ([CallOutcome.OK], 0.0),
        ([CallOutcome.OK, CallOutcome.FAILED], -1.0),
        ([CallOutcome.MALFORMED], -1.0),
        ([CallOutcome.FAILED, CallOutcome.FAILED], -1.0),
        ([CallOutcome.UNAVAILABLE, CallOutcome.REFUSED], 0.0),
    ],
)
def test_executable(outcomes: list[CallOutcome], score: float) -> None:
    calls = [CallRecord("python", {"code": "x"}, "", outcome, 0.0) for outcome in outcomes]
    assert ExecutablePenalty()([Trajectory(TASK, calls=calls)]) == [score]


def toolrl(wanted: Any, made: list[tuple[str, dict[str, Any]]]) -> float | None:
    calls = [CallRecord(name, arguments, "", CallOutcome.OK, 0.0) for name, arguments in made]
    meta = {} if wanted is None else {"calls": wanted}
    [score] = ToolRLReward()([Trajectory(Task("q", "?", (), meta), calls=calls)])
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
    for wanted in ([{"tool": "f"}], 5, {}, "f"):
        with pytest.raises(UserError, match="expected calls of task 'q' cannot be parsed"):
            toolrl(wanted, [])


# -- calls that are not executed -------------------------------------------------------------------

F1 = '{"name": "f", "parameters": {"a": 1}}'
F2 = '{"name": "f", "parameters": {"a": 2}}'
G = '{"name": "g", "parameters": {}}'
SAYS = "<response> Done. </response>"


def calls(*lines: str) -> str:
    return "\n".join(("<tool_call>", *lines, "</tool_call>"))


def scores(gold: str, wanted: list[Any], answer: str | None, well_formed: bool) -> list[Any]:
    """Return toolrl, toolrl_format and toolrl_exact of one rollout."""
    task = Task("q", "?", (gold,), {"calls": wanted})
    rollout = answered(answer, well_formed, task)
    return [
        reward([rollout])[0]
        for reward in (ToolRLReward(), ToolRLFormatReward(), ToolRLExactReward())
    ]


@pytest.mark.parametrize(
    ("gold", "wanted", "answer", "expected"),
    [
        (calls(F1), [call("f", a=1)], calls(F1), [3.0, 1.0, 1.0]),
        # names 1, keys 1, no value: 6 * 2 / 3 - 3
        (calls(F1), [call("f", a=1)], calls(F2), [1.0, 1.0, 0.0]),
        (calls(F1), [call("f", a=1)], calls("f(1)"), [-3.0, 1.0, 0.0]),
        (calls(F1), [call("f", a=1)], calls(F1, "f(1)"), [-3.0, 1.0, 0.0]),
        (calls(F1), [call("f", a=1)], SAYS, [-3.0, 0.0, 0.0]),
        (calls(F1), [call("f", a=1)], calls(F1) + "\n" + SAYS, [3.0, 0.0, 0.0]),
        # names 1/2, keys 1, values 1: 6 * 2.5 / 3 - 3
        (calls(F1), [call("f", a=1)], calls(F1, G), [2.0, 1.0, 0.0]),
        (calls(F1), [call("f", a=1)], calls(F1, F1), [2.0, 1.0, 0.0]),
        # two calls of one name, in either order
        (calls(F1, F2), [call("f", a=1), call("f", a=2)], calls(F2, F1), [3.0, 1.0, 1.0]),
        # names 1, keys 1 + 1, one value: 6 * 4 / 5 - 3
        (
            calls(F1, F2),
            [call("f", a=1), call("f", a=2)],
            calls(F1, F1),
            [pytest.approx(1.8), 1.0, 0.0],
        ),
        # no call is expected: a spurious one costs only the layout
        (SAYS, [], SAYS, [0.0, 1.0, 1.0]),
        (SAYS, [], "<response> No. </response>", [0.0, 1.0, 1.0]),
        (SAYS, [], calls(G), [0.0, 0.0, 0.0]),
        (SAYS, [], calls("no JSON") + SAYS, [0.0, 0.0, 0.0]),
        (calls(G) + SAYS, [call("g")], calls(G) + "\n" + SAYS, [3.0, 1.0, 1.0]),
        (calls(G) + SAYS, [call("g")], calls(G), [3.0, 0.0, 0.0]),
    ],
)
def test_toolrl_reads_the_calls_of_an_answer(
    gold: str, wanted: list[Any], answer: str, expected: list[Any]
) -> None:
    assert scores(gold, wanted, answer, well_formed=True) == expected
    assert scores(gold, wanted, answer, well_formed=False) == [expected[0], 0.0, 0.0]


def test_a_rollout_without_an_answer() -> None:
    assert scores(calls(F1), [call("f", a=1)], None, well_formed=False) == [-3.0, 0.0, 0.0]
    assert scores(SAYS, [], None, well_formed=False) == [0.0, 0.0, 0.0]


def test_toolrl_of_calls_that_ran() -> None:
    """Use calls of the rollout itself, as with the dialect hermes; the answer has none."""
    task = Task("q", "?", ("42",), {"calls": [call("f", a=1)]})
    ran = Trajectory(
        task,
        calls=[CallRecord("f", {"a": 1}, "42", CallOutcome.OK, 0.0)],
        answer="41",
        well_formed=True,
    )
    failed = Trajectory(
        task, calls=[CallRecord("", {}, "?", CallOutcome.MALFORMED, 0.0)], well_formed=True
    )
    group = [ran, failed]
    assert ToolRLReward()(group) == [3.0, -3.0]
    assert ToolRLFormatReward()(group) == [1.0, 1.0]
    assert ToolRLExactReward()(group) == [1.0, 0.0]
    none_wanted = Task("q", "?", ("42",), {"calls": []})
    ran.task = none_wanted
    spared = Trajectory(none_wanted, answer="41", well_formed=True)
    assert ToolRLExactReward()([ran, spared]) == [0.0, 1.0]


def test_a_task_without_wanted_calls_is_not_gradable() -> None:
    rollout = answered(calls(F1), task=Task("q", "?", ()))
    assert (ToolRLReward()([rollout]), ToolRLExactReward()([rollout])) == ([None], [None])
    assert ToolRLFormatReward()([rollout]) == [1.0]  # nothing specifies the expected blocks
