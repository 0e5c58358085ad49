"""Task metadata: validation of the values used by metrics, and of the grader."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any

META_TYPES: Mapping[str, tuple[type | UnionType, str]] = {
    "hops": (int, "a whole number"),
    "calls_optimal": (int, "a whole number"),
    "cost_optimal": (int | float, "a number"),
    "known": (bool, "true or false"),
    "split": (str, "text"),
}
TEXT_LISTS = ("gold_titles", "gold_passages")  # of supporting passages
CLOSED_BOOK_KEY = "closed_book"
GRADED_BY_KEY = "graded_by"
# Rewards that a task may name, all of them built in: data files must not cause imports.
TASK_GRADERS = (
    *("em", "cover_em", "math", "judge", "rubric", "unit_tests", "stdin_tests", "toolrl_exact"),
    "reasoning_gym",
)


def validate_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """Return `meta` unchanged. None is an unknown value, as of an empty cell of a table. Raises
    ValueError for values that metrics or grading cannot use."""
    for key, (kind, description) in META_TYPES.items():
        if not isinstance(value := meta.get(key), kind | None):
            raise ValueError(f"'{key}' is {value!r} and must be {description}")
    for key in TEXT_LISTS:
        if not _is_text_list(value := meta.get(key)):
            raise ValueError(f"'{key}' is {value!r} and must be a list of texts")
    if (rate := meta.get(CLOSED_BOOK_KEY)) is not None and not _is_fraction(rate):
        raise ValueError(f"'{CLOSED_BOOK_KEY}' is {rate!r} and must be a number from 0 to 1")
    grader = meta.get(GRADED_BY_KEY)
    if grader is not None and grader not in TASK_GRADERS:
        raise ValueError(
            f"'{GRADED_BY_KEY}' is {grader!r} and must be one of {', '.join(TASK_GRADERS)}"
        )
    if (ways := meta.get("ways")) is not None and not _is_ways_list(ways):
        raise ValueError(
            f"'ways' is {ways!r} and must be a list of calls by tool, as in"
            ' [{"search": 1, "read": 1}]'
        )
    return meta


def _is_text_list(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(v, str) for v in value))


def _is_fraction(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_ways_list(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(calls, dict) and all(type(n) is int and n >= 0 for n in calls.values())
        for calls in value
    )
