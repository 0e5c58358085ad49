"""What the metadata of a task may hold: values that metrics can count, and who grades it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COUNTED: Mapping[str, tuple[type, str]] = {
    "hops": (int, "a whole number"),
    "calls_optimal": (int, "a whole number"),
    "known": (bool, "true or false"),
    "split": (str, "text"),
}
RATE = "closed_book"
GRADED_BY = "graded_by"
# The rewards that a task may name, all built in: what a file says must not be imported.
GRADERS = ("em", "cover_em", "math", "judge", "unit_tests", "stdin_tests", "toolrl_exact")


def checked_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """The same `meta`. Raises ValueError for a value that nothing can be counted or graded with."""
    for key, (kind, words) in COUNTED.items():
        if not isinstance(value := meta.get(key), kind | None):
            raise ValueError(f"'{key}' is {value!r} and must be {words}")
    if (rate := meta.get(RATE)) is not None and not _is_share(rate):
        raise ValueError(f"'{RATE}' is {rate!r} and must be a number from 0 to 1")
    grader = meta.get(GRADED_BY)
    if grader is not None and grader not in GRADERS:
        raise ValueError(f"'{GRADED_BY}' is {grader!r} and must be one of {', '.join(GRADERS)}")
    return meta


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
