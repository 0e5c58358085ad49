"""Filters that look at the question of a demonstration alone: its tests, and whether it is a proof.

AFM (arXiv 2508.13167, section 3) trains on programs with 50 tests or more on average, and leaves
out proof problems, whose answers cannot be compared.
"""

from __future__ import annotations

import ast
import re

from pydantic import PositiveInt

from fieldcraft.data.filters import KEPT, Chain, FilterContext, Verdict
from fieldcraft.data.program_tests import STDIN, UNIT
from fieldcraft.types import Task

_PROVES = re.compile(
    r"\b(?:prove|disprove|show that|demonstrate that|(?:give|write) an? (?:\w+ )?proof)\b", re.I
)
# An imperative stands at the beginning of a sentence or of a clause.
_ASKS = re.compile(
    r"\?|(?:\A|[.!:;,)$]\s*|\n\s*|\b(?:and|or|then|also|to)\s+)"
    r"(?:find|determine|compute|calculate|evaluate|solve|simplify|express|list|count|state)\b",
    re.I,
)


class TestsFilter:
    """Filter that leaves out questions for programs with fewer than `least` tests. A question
    without tests asks for no program, and stays."""

    def __init__(self, least: PositiveInt = 50) -> None:
        self.least = least
        self.reason = f"fewer than {least} tests"

    def __call__(self, chain: Chain, context: FilterContext) -> Verdict:
        count = count_tests(chain.task)
        return Verdict(count is None or count >= self.least, self.reason)


def count_tests(task: Task) -> int | None:
    """Count the tests of a question for a program: inputs with their outputs, and assertions in
    unit tests, where a text without any counts once. None for a question without tests."""
    stdin, unit = task.meta.get(STDIN), task.meta.get(UNIT)
    if not stdin and not unit:
        return None
    return len(stdin or ()) + sum(map(_assertions, unit or ()))


def _assertions(test: str) -> int:
    try:
        nodes = ast.walk(ast.parse(test))
    except SyntaxError:
        return 1
    return max(1, sum(isinstance(node, ast.Assert) for node in nodes))


def proofs(chain: Chain, context: FilterContext) -> Verdict:
    """Leave out problems that ask for a proof, see `asks_for_proof`."""
    return Verdict(0, "a proof") if asks_for_proof(chain.task) else KEPT


def asks_for_proof(task: Task) -> bool:
    """Return whether the type of a task is `proof`, or its question says to prove or to show that
    something holds and asks for nothing that could be compared: it has neither a question mark nor
    a clause that begins with find, determine, compute and the like. A question with tests asks for
    a program."""
    if "proof" in str(task.meta.get("type", "")).lower():
        return True
    asks = count_tests(task) is not None or _ASKS.search(task.question)
    return not asks and _PROVES.search(task.question) is not None
