"""Rewards that run programs; the runner of these tests has no sandbox."""

import asyncio
from typing import Any

import pytest

from fieldcraft.rewards.programs import (
    ProgramReward,
    StdinTestReward,
    UnitTestReward,
    compute_program_metrics,
    is_same_output,
)
from fieldcraft.types import Status, Task, Trajectory, UserError
from unguarded import Unguarded


def score(reward: ProgramReward, answer: str | None, **meta: Any) -> float | None:
    task = Task("q", "?", (), meta)
    return asyncio.run(
        reward.score_trajectory(Trajectory(task, status=Status.ANSWERED, answer=answer))
    )


TWICE = "def twice(n):\n    return 2 * n"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (TWICE, 1.0),
        (f"It is:\n```python\n{TWICE}\n```\n", 1.0),
        (f"from __future__ import annotations\n{TWICE}", 1.0),
        (TWICE.replace("2", "3"), 0.0),
        ("def twice(n)", 0.0),
        ("import os; os._exit(0)", 0.0),  # ends before the tests
        ("raise SystemExit", 0.0),
        ("", 0.0),
        (None, 0.0),
    ],
)
def test_unit_tests(answer: str | None, expected: float) -> None:
    tests = ["assert twice(2) == 4", "assert twice(-1) == -2"]
    assert score(UnitTestReward(Unguarded()), answer, unit_tests=tests) == expected


ADD = "a, b = map(int, input().split())\nprint(a + b)"


@pytest.mark.parametrize(
    ("answer", "runs", "expected"),
    [
        (ADD, 3, 1.0),
        (ADD.replace("a + b", "3"), 2, 0.0),  # the first test passes, the third is not run
        (ADD + "\nraise SystemExit(1)", 1, 0.0),
        ("print('never reads')", 1, 0.0),
    ],
)
def test_stdin_tests_end_with_the_first_that_fails(answer: str, runs: int, expected: float) -> None:
    tests = [{"input": f"{n} 2\n", "output": f"{n + 2}\n"} for n in (1, 2, 3)]
    runner = Unguarded()
    assert score(StdinTestReward(runner), answer, stdin_tests=tests) == expected
    assert runner.inputs == [test["input"] for test in tests[:runs]]


def test_a_task_without_tests_cannot_be_graded() -> None:
    assert score(UnitTestReward(Unguarded()), TWICE) is None
    assert score(StdinTestReward(Unguarded()), ADD, stdin_tests=[]) is None


@pytest.mark.parametrize("tests", [["x", 1], 5, {"input": "x"}])
def test_tests_that_are_none_are_refused(tests: Any) -> None:
    with pytest.raises(UserError, match="unit_tests of task 'q' have an invalid format"):
        score(UnitTestReward(Unguarded()), TWICE, unit_tests=tests)


@pytest.mark.parametrize(
    ("printed", "wanted", "same"),
    [
        ("1 2\n", "1\n2", True),
        ("yes", "Yes", False),
        ("1", "1 1", False),
        ("", "", True),
        ("", "0", False),
        ("0.3333333", "0.33333333333", True),
        ("0.334", "0.333", False),
        ("1e3", "1000", True),
        ("1000000.5", "1000001.0", True),  # relatively
        ("10000000", "10000001", False),  # whole numbers are exact
        ("-0.0", "0", True),
        ("nan", "nan", True),
        ("1_0", "10.0", False),
        ("+5", "5", False),
    ],
)
def test_same_output(printed: str, wanted: str, same: bool) -> None:
    assert is_same_output(printed, wanted) is same


@pytest.mark.parametrize(
    ("answers", "rate"),
    [([], None), ([TWICE, None, "It cannot be done."], 1 / 3), ([f"```py\n{TWICE}"], 0.0)],
)
def test_the_rate_of_answers_without_a_program(answers: list[str | None], rate: Any) -> None:
    task = Task("q", "?", ("A",))
    others = [Trajectory(task, answer="A", rewards={"em": 1.0, "unit_tests": None})]
    graded = [Trajectory(task, answer=a, rewards={"unit_tests": 0.0}) for a in answers]
    assert compute_program_metrics(others + graded).get("no_program_rate") == rate


@pytest.mark.parametrize(
    "program",
    [
        "def f(values: List[int]) -> int:\n    return math.prod(values)",
        "from __future__ import annotations\nimport sys\n\ndef f(v: Unknown): return math.prod(v)",
        '"""A docstring."""\nfrom __future__ import annotations\nf = math.prod',
    ],
)
def test_a_prelude_runs_before_the_program(program: str) -> None:
    tests = ["assert f([2, 3]) == 6"]
    prelude = "import math\nfrom typing import *"
    assert score(UnitTestReward(Unguarded()), program, unit_tests=tests, prelude=prelude) == 1.0
    assert score(UnitTestReward(Unguarded()), program, unit_tests=tests) == 0.0


def test_a_prelude_passes_no_program_that_fails() -> None:
    tests = {"unit_tests": ["assert f(1) == 2"], "prelude": "def f(n):\n    return 2"}
    assert score(UnitTestReward(Unguarded()), "def f(n):\n    return 3", **tests) == 0.0
    assert score(UnitTestReward(Unguarded()), "def f(n):\n    return (", **tests) == 0.0
