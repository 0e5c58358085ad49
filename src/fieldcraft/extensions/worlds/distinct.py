"""Distinct items that are drawn at random, until hardly any new one is left."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

TRIES_PER_QUESTION = 60  # attempts per requested question
MAX_FAILURES = 60_000  # consecutive attempts after which hardly any question is left
ItemT = TypeVar("ItemT")


def draw_distinct_items(
    draw: Callable[[], ItemT | None],
    make_key: Callable[[ItemT], str],
    max_failures: int,
    max_draws: int | None = None,
) -> Iterator[ItemT]:
    """Yield the drawn items whose key is new, until `max_failures` consecutive draws have given
    none, or after `max_draws`. A draw may give None."""
    found: set[str] = set()
    failures = 0
    for _ in itertools.count() if max_draws is None else range(max_draws):
        if failures == max_failures:
            return
        failures += 1
        item = draw()
        if item is not None and (key := make_key(item)) not in found:
            found.add(key)
            failures = 0
            yield item
