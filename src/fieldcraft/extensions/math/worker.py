"""Worker process that compares mathematical answers with Math-Verify; sympy may never terminate.

The request is {"golds": [...], "answer": "..."}. The response is {"known": ...} (whether any gold
answer could be parsed), followed by {"right": ...}.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fieldcraft.extensions.math.equality import is_equivalent
from fieldcraft.extensions.math.parser import parse_math
from fieldcraft.tools.killable_worker import serve_requests


def _grade(question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    golds = list(map(parse_math, question["golds"]))
    yield {"known": any(golds)}
    given = parse_math(question["answer"])
    yield {"right": any(is_equivalent(gold, given) for gold in golds)}


if __name__ == "__main__":
    is_equivalent(parse_math("\\frac{1}{2}"), parse_math("0.5"))  # the first call loads the grammar
    serve_requests(_grade)
