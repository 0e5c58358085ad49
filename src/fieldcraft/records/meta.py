"""What a task's `meta` may hold: values that metrics can count."""

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


def checked_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """The same `meta`. Raises ValueError for a value that nothing can be counted with."""
    for key, (kind, words) in COUNTED.items():
        if not isinstance(value := meta.get(key), kind | None):
            raise ValueError(f"'{key}' is {value!r} and must be {words}")
    if (rate := meta.get(RATE)) is not None and not _is_share(rate):
        raise ValueError(f"'{RATE}' is {rate!r} and must be a number from 0 to 1")
    return meta


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
