"""Rewards for programs: `unit_tests` and `stdin_tests`, which run an answer in a sandbox.

The tests of a task are in its `meta`: `unit_tests`, a list of Python texts that use the program's
definitions and raise if they are wrong, or `stdin_tests`, a list of {"input": ..., "output": ...}.
Tests run sequentially up to the first failure, each with the limits of the runner. The optional
`prelude` is Python code that runs before the program, such as the imports of a judge.
"""

from __future__ import annotations

import ast
import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from fieldcraft.rewards.program_extraction import extract_program
from fieldcraft.rewards.rubric import AsyncReward
from fieldcraft.types import Trajectory, UserError

NUMBER_PATTERN = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
INTEGER_PATTERN = re.compile(r"[-+]?\d+")
PRELUDE_KEY = "prelude"  # in `meta`


class ProgramOutcome(Protocol):
    """Result of running a program."""

    @property
    def ok(self) -> bool:
        """Return whether the program exited normally and without an error."""
        ...

    @property
    def stdout(self) -> str: ...


@runtime_checkable
class ProgramRunner(Protocol):
    """Runner of untrusted programs, such as the sandbox, which enforces its own limits on each
    run. It must keep at least as much output as a test expects."""

    async def run(self, code: str, stdin: str = "") -> ProgramOutcome: ...

    async def test(self, code: str, tests: str, imports: str) -> ProgramOutcome:
        """Run `tests` against a program, in a separate process that executes `imports`."""
        ...


class ProgramReward(AsyncReward):
    """Reward of 1.0 for a program that passes all tests of its task, else 0.0. An answer without a
    program (`extract_program`) is 0.0, and a task without tests None."""

    tests_key: str  # key of the tests in `meta`

    def __init__(self, runner: ProgramRunner) -> None:
        self._runner = runner

    async def score_trajectory(self, trajectory: Trajectory) -> float | None:
        """Run the tests of a trajectory's program. Raises UserError for invalid tests."""
        tests = trajectory.task.meta.get(self.tests_key)
        if not tests:
            return None
        self.require_tests(trajectory.task.id, tests)
        code = extract_program(trajectory.answer or "")
        if code is None:
            return 0.0
        prelude = str(trajectory.task.meta.get(PRELUDE_KEY, ""))
        code = add_prelude(code, prelude)
        for test in tests:
            if not await self.passes(code, test, prelude):
                return 0.0
        return 1.0

    def require_tests(self, task: str, tests: Any) -> None:
        """Check the format of tests. Raises UserError if it is invalid."""
        if not isinstance(tests, Sequence) or not all(map(self.is_test, tests)):
            raise UserError(
                f"the {self.tests_key} of task '{task}' have an invalid format: write them as"
                " described in rewards/programs.py."
            )

    @abstractmethod
    def is_test(self, test: Any) -> bool: ...

    @abstractmethod
    async def passes(self, code: str, test: Any, prelude: str) -> bool: ...


class UnitTestReward(ProgramReward):
    """Reward by unit tests, which run in a separate process and are invisible to the program."""

    name = "unit_tests"
    tests_key = "unit_tests"

    def is_test(self, test: Any) -> bool:
        return isinstance(test, str)

    async def passes(self, code: str, test: str, prelude: str) -> bool:
        return (await self._runner.test(code, test, _extract_imports(prelude))).ok


class StdinTestReward(ProgramReward):
    """Reward by standard input and output: the program must print a test's output for its input,
    compared with `is_same_output`."""

    name = "stdin_tests"
    tests_key = "stdin_tests"

    def is_test(self, test: Any) -> bool:
        return (
            isinstance(test, dict)
            and isinstance(test.get("input"), str)
            and isinstance(test.get("output"), str)
        )

    async def passes(self, code: str, test: dict[str, str], prelude: str) -> bool:
        outcome = await self._runner.run(code, stdin=test["input"])
        return outcome.ok and is_same_output(outcome.stdout, test["output"])


TEST_REWARD_NAMES = frozenset({UnitTestReward.name, StdinTestReward.name})


def compute_program_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return `no_program_rate`: among the rollouts graded by program tests, the share whose answer
    contains no program. Empty if no rollout is graded by tests. Rollouts without an answer are not
    counted here."""
    graded = [
        t for t in trajectories if any(t.rewards.get(n) is not None for n in TEST_REWARD_NAMES)
    ]
    if not graded:
        return {}
    without_program = [
        t for t in graded if t.answer is not None and extract_program(t.answer) is None
    ]
    return {"no_program_rate": len(without_program) / len(graded)}


def add_prelude(code: str, prelude: str) -> str:
    """Return a program after its prelude; its imports from __future__ come first, as Python
    requires."""
    if not prelude:
        return code
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code  # it cannot run in either case
    future = [n for n in body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    lines = code.splitlines(keepends=True)
    first = future[-1].end_lineno or 0 if future else 0
    return "".join([*lines[:first], "\n" if first else "", prelude.rstrip(), "\n", *lines[first:]])


def _extract_imports(prelude: str) -> str:
    """Return the imports of a prelude, which tests may rely on. The program may redefine everything
    else in it."""
    try:
        body = ast.parse(prelude).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return "\n".join(ast.unparse(n) for n in body if isinstance(n, ast.Import | ast.ImportFrom))


def is_same_output(printed: str, wanted: str) -> bool:
    """Return whether two outputs have the same words, ignoring white space. Two numbers, at least
    one of which has a decimal point or an exponent, may differ by 1e-6, absolutely or relatively;
    integers must be equal."""
    words, wanted_words = printed.split(), wanted.split()
    return len(words) == len(wanted_words) and all(map(_is_same_word, words, wanted_words))


def _is_same_word(word: str, other: str) -> bool:
    if word == other:
        return True
    if INTEGER_PATTERN.fullmatch(word) and INTEGER_PATTERN.fullmatch(other):
        return False
    if NUMBER_PATTERN.fullmatch(word) is None or NUMBER_PATTERN.fullmatch(other) is None:
        return False
    return math.isclose(float(word), float(other), rel_tol=1e-6, abs_tol=1e-6)
