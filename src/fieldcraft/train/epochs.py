"""Selection of the examples of a step: a function of the step number, without state."""

from __future__ import annotations

import random
from functools import lru_cache


def draw_epoch_batch(seed: int, step: int, num_examples: int, batch_size: int) -> list[int]:
    """Return the indices of batch number `step` in a sequence of shuffled epochs."""
    indices: list[int] = []
    position = step * batch_size
    while len(indices) < batch_size:
        epoch, start = divmod(position, num_examples)
        chunk = _shuffle_epoch(seed, epoch, num_examples)[start : start + batch_size - len(indices)]
        indices += chunk
        position += len(chunk)
    return indices


@lru_cache(maxsize=2)  # this epoch and the next: reshuffling thousands takes a tenth of a step
def _shuffle_epoch(seed: int, epoch: int, num_examples: int) -> list[int]:
    order = list(range(num_examples))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order
