"""The process that compares mathematical answers, by Math-Verify: sympy may compute for ever.

A question is {"golds": [...], "answer": "..."}. The answer is {"known": ...}, whether any gold
answer can be read, and then {"right": ...}.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fieldcraft.rewards.math_equality import equal
from fieldcraft.rewards.math_reading import read
from fieldcraft.tools.killable_process import answer


def _graded(question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    golds = list(map(read, question["golds"]))
    yield {"known": any(golds)}
    given = read(question["answer"])
    yield {"right": any(equal(gold, given) for gold in golds)}


if __name__ == "__main__":
    equal(read("\\frac{1}{2}"), read("0.5"))  # the first one loads the grammar
    answer(_graded)
