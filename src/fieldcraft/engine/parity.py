"""Probe texts, computed as a model is trained or sampled, and by plain forward passes.

If the two differ, its architecture is refused, whatever the reason is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.sizes import get_max_positions
from fieldcraft.types import UserError

# The mean difference of log-probabilities, in their standard deviations, by the type in which the
# model computes. Another kernel rounds otherwise; attention to a wrong token, or a tensor that is
# lost, changes them by about as much as they vary.
MAX_DIFFERENCE_STDS: dict[Dtype, float] = {"float32": 0.002, "bfloat16": 0.2}
MIN_TOLERANCE_NATS = 1e-3  # nats, where they hardly vary
GOLDEN_RATIO_STRIDE = (
    0.6180339887498949  # of the golden ratio: multiples of it spread evenly over [0, 1)
)
# Tokens of the probe texts; the second one begins as the first one does. That is more than a block
# of the cache of the local engine.
PROBE_TEXT_TOKENS, SHARED_PREFIX_TOKENS = (40, 40, 12), 36


def make_spaced_ids(start: int, count: int, vocab_size: int) -> list[int]:
    """Return ids from all over a vocabulary of so many words."""
    return [int(i * GOLDEN_RATIO_STRIDE % 1 * vocab_size) for i in range(start, start + count)]


def make_probe_texts(config: Any) -> list[list[int]]:
    """Return three texts of ids for a model of a configuration, of which two begin alike; shorter
    ones where it has fewer positions."""
    vocab_size, max_tokens = (
        int(config.vocab_size),
        get_max_positions(config) or max(PROBE_TEXT_TOKENS),
    )
    first, second, third = (
        make_spaced_ids(1 + 100 * index, min(length, max_tokens), vocab_size)
        for index, length in enumerate(PROBE_TEXT_TOKENS)
    )
    return [first, [*first[:SHARED_PREFIX_TOKENS], *second[SHARED_PREFIX_TOKENS:]], third]


def compute_tolerance_nats(dtype: Dtype, logprobs: Tensor) -> float:
    """Return the mean difference from such log-probabilities that rounding explains, in nats."""
    return max(MIN_TOLERANCE_NATS, MAX_DIFFERENCE_STDS[dtype] * float(logprobs.std(correction=0)))


def require_equal_logprobs(
    model: Any, condition: str, dtype: Dtype, actual: Sequence[Tensor], expected: Sequence[Tensor]
) -> None:
    """Raise UserError if log-probabilities of texts, computed in a certain way, differ from those
    of plain forward passes."""
    actual_logprobs, expected_logprobs = (
        torch.cat(list(actual)).float().cpu(),
        torch.cat(list(expected)).float().cpu(),
    )
    is_finite = expected_logprobs.isfinite()  # weights that overflow are found when they are used
    if not is_finite.any():
        return
    difference, tolerance = (
        float((actual_logprobs - expected_logprobs)[is_finite].abs().mean()),
        compute_tolerance_nats(dtype, expected_logprobs[is_finite]),
    )
    if not difference <= tolerance:  # so it is also if one of them is not a number
        raise UserError(
            f"{type(model).__name__} is not supported for training or sampling because {condition}"
            " its log-probabilities of probe texts differ from a plain forward pass by"
            f" {difference:.3g} nats, more than rounding explains ({tolerance:.3g}): choose an"
            " architecture listed in docs/lab-notes/architectures.md."
        )


@torch.no_grad()
def compute_reference_logprobs(model: Any, ids: Sequence[int]) -> Tensor:
    """Return the log-probabilities [n - 1] of all ids but the first, by a forward pass of this text
    alone."""
    logits = model(torch.tensor([list(ids)], device=model.device), use_cache=False).logits[0]
    return gather_logprobs(logits[:-1], ids[1:])


def gather_logprobs(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Return the log-probability [n] of each id by its logits [n, V]."""
    chosen = torch.tensor(list(ids), device=logits.device)[:, None]
    return logits.float().log_softmax(-1).gather(1, chosen)[:, 0]
