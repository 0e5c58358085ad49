"""Filters that use only the question of a demonstration: its tests, and whether it is a proof.

AFM (arXiv 2508.13167, section 3) trains on programs with 50 tests or more on average, and leaves
out proof problems, whose answers cannot be compared.
"""

from __future__ import annotations

import ast
import re

from pydantic import PositiveInt

from fieldcraft.data.filters import KEEP, Demonstration, FilterContext, FilterDecision
from fieldcraft.data.program_tests import STDIN_TESTS_KEY, UNIT_TESTS_KEY
from fieldcraft.types import Task

_PROOF_PHRASE = re.compile(
    r"\b(?:prove|disprove|show that|demonstrate that|(?:give|write) an? (?:\w+ )?proof)\b", re.I
)
# An imperative occurs at the start of a sentence or clause.
_COMPUTATION_PHRASE = re.compile(
    r"\?|(?:\A|[.!:;,)$]\s*|\n\s*|\b(?:and|or|then|also|to)\s+)"
    r"(?:find|determine|compute|calculate|evaluate|solve|simplify|express|list|count|state)\b",
    re.I,
)


class TestsFilter:
    """Filter that drops questions for programs with fewer than `least` tests. A question without
    tests asks for no program, and is accepted."""

    def __init__(self, least: PositiveInt = 50) -> None:
        self.least = least
        self.reason = f"fewer than {least} tests"

    def __call__(self, demonstration: Demonstration, context: FilterContext) -> FilterDecision:
        count = count_tests(demonstration.task)
        return FilterDecision(count is None or count >= self.least, self.reason)


def count_tests(task: Task) -> int | None:
    """Count the tests of a question for a program: inputs with their outputs, and assertions in
    unit tests, where a test without assertions counts once. Return None for a question without
    tests."""
    stdin, unit = task.meta.get(STDIN_TESTS_KEY), task.meta.get(UNIT_TESTS_KEY)
    if not stdin and not unit:
        return None
    return len(stdin or ()) + sum(map(_count_assertions, unit or ()))


def _count_assertions(test: str) -> int:
    try:
        nodes = ast.walk(ast.parse(test))
    except SyntaxError:
        return 1
    return max(1, sum(isinstance(node, ast.Assert) for node in nodes))


def drop_proofs(demonstration: Demonstration, context: FilterContext) -> FilterDecision:
    """Drop problems that ask for a proof, see `asks_for_proof`."""
    return FilterDecision(0, "a proof") if asks_for_proof(demonstration.task) else KEEP


def asks_for_proof(task: Task) -> bool:
    """Return whether a task asks for a proof. Either its type is `proof`, or its question says to
    prove or to show something and asks for nothing that could be compared: it has neither a
    question mark nor a clause that starts with find, determine, compute and the like. A question
    with tests asks for a program."""
    if "proof" in str(task.meta.get("type", "")).lower():
        return True
    asks = count_tests(task) is not None or _COMPUTATION_PHRASE.search(task.question)
    return not asks and _PROOF_PHRASE.search(task.question) is not None
