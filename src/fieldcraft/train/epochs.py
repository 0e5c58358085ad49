"""The examples of a step: a function of its number, so that nothing has to be remembered."""

from __future__ import annotations

import random
from functools import lru_cache


def draw(seed: int, step: int, size: int, batch: int) -> list[int]:
    """Return the indices of batch number `step`: shuffled epochs end to end, a function of the
    number."""
    found: list[int] = []
    position = step * batch
    while len(found) < batch:
        epoch, start = divmod(position, size)
        part = _order(seed, epoch, size)[start : start + batch - len(found)]
        found += part
        position += len(part)
    return found


@lru_cache(maxsize=2)  # an epoch and the next: shuffling thousands anew costs a tenth of a step
def _order(seed: int, epoch: int, size: int) -> list[int]:
    order = list(range(size))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order
