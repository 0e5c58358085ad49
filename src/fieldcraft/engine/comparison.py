"""Probe texts, computed as a model is trained or sampled, and by plain forward passes.

If the two differ, its architecture is refused, whatever the reason is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.sizes import positions
from fieldcraft.types import UserError

# The mean difference of log-probabilities, in their standard deviations, by the type in which the
# model computes. Another kernel rounds otherwise; attention to a wrong token, or a tensor that is
# lost, changes them by about as much as they vary.
TOLERANCE: dict[Dtype, float] = {"float32": 0.002, "bfloat16": 0.2}
LEAST = 1e-3  # nats, where they hardly vary
STRIDE = 0.6180339887498949  # of the golden ratio: multiples of it spread evenly over [0, 1)
# Tokens of the probe texts; the second one begins as the first one does. That is more than a block
# of the cache of the local engine.
LENGTHS, SHARED = (40, 40, 12), 36


def even_ids(start: int, count: int, words: int) -> list[int]:
    """Return ids from all over a vocabulary of so many words."""
    return [int(i * STRIDE % 1 * words) for i in range(start, start + count)]


def probe_texts(config: Any) -> list[list[int]]:
    """Return three texts of ids for a model of a configuration, of which two begin alike; shorter
    ones where it has fewer positions."""
    words, most = int(config.vocab_size), positions(config) or max(LENGTHS)
    first, second, third = (
        even_ids(1 + 100 * place, min(length, most), words) for place, length in enumerate(LENGTHS)
    )
    return [first, [*first[:SHARED], *second[SHARED:]], third]


def allowed(dtype: Dtype, logprobs: Tensor) -> float:
    """Return the mean difference from such log-probabilities that rounding explains, in nats."""
    return max(LEAST, TOLERANCE[dtype] * float(logprobs.std(correction=0)))


def require_equal(
    model: Any, how: str, dtype: Dtype, found: Sequence[Tensor], plain: Sequence[Tensor]
) -> None:
    """Raise UserError if log-probabilities of texts, computed in a certain way, differ from those
    of plain forward passes."""
    said, wanted = torch.cat(list(found)).float().cpu(), torch.cat(list(plain)).float().cpu()
    known = wanted.isfinite()  # weights that overflow are found when they are used
    if not known.any():
        return
    gap, most = float((said - wanted)[known].abs().mean()), allowed(dtype, wanted[known])
    if not gap <= most:  # so it is also if one of them is not a number
        raise UserError(
            f"{type(model).__name__} can be neither trained nor sampled from here, because {how}"
            f" its log-probabilities of probe texts are {gap:.3g} nats from those of a plain"
            f" forward pass, more than the {most:.3g} that rounding explains: choose a model of an"
            " architecture that docs/lab-notes/architectures.md lists."
        )


@torch.no_grad()
def plain_logprobs(model: Any, ids: Sequence[int]) -> Tensor:
    """Return the log-probabilities [n - 1] of all ids but the first, by a forward pass of this text
    alone."""
    logits = model(torch.tensor([list(ids)], device=model.device), use_cache=False).logits[0]
    return logprobs_of(logits[:-1], ids[1:])


def logprobs_of(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Return the log-probability [n] of each id by its logits [n, V]."""
    chosen = torch.tensor(list(ids), device=logits.device)[:, None]
    return logits.float().log_softmax(-1).gather(1, chosen)[:, 0]
