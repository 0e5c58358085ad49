"""Metadata that a task may hold: values that metrics can count, and who grades it."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any

COUNTED: Mapping[str, tuple[type | UnionType, str]] = {
    "hops": (int, "a whole number"),
    "calls_optimal": (int, "a whole number"),
    "cost_optimal": (int | float, "a number"),
    "known": (bool, "true or false"),
    "split": (str, "text"),
}
RATE = "closed_book"
GRADED_BY = "graded_by"
# The rewards that a task may name, all built in: what a file says must not be imported.
GRADERS = ("em", "cover_em", "math", "judge", "unit_tests", "stdin_tests", "toolrl_exact")


def checked_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the same `meta`. Raises ValueError for a value that nothing can be counted or graded
    with."""
    for key, (kind, words) in COUNTED.items():
        if not isinstance(value := meta.get(key), kind | None):
            raise ValueError(f"'{key}' is {value!r} and must be {words}")
    if (rate := meta.get(RATE)) is not None and not _is_share(rate):
        raise ValueError(f"'{RATE}' is {rate!r} and must be a number from 0 to 1")
    grader = meta.get(GRADED_BY)
    if grader is not None and grader not in GRADERS:
        raise ValueError(f"'{GRADED_BY}' is {grader!r} and must be one of {', '.join(GRADERS)}")
    if not _are_ways(meta.get("ways", [])):
        raise ValueError(
            f"'ways' is {meta['ways']!r} and must be a list of calls by tool, as in"
            ' [{"search": 1, "read": 1}]'
        )
    return meta


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _are_ways(found: Any) -> bool:
    return isinstance(found, list) and all(
        isinstance(way, dict) and all(type(n) is int and n >= 0 for n in way.values())
        for way in found
    )
