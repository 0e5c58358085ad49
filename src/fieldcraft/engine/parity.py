"""Parity check of a model's training or sampling path with plain forward passes, on probe texts.

If the log-probabilities differ, the architecture is rejected, regardless of the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.sizes import get_max_positions
from fieldcraft.types import UserError

# Maximum mean difference of log-probabilities, in units of their standard deviation, by compute
# dtype. A different kernel changes only rounding; attention to a wrong token, or a lost tensor,
# changes them by about one standard deviation.
MAX_DIFFERENCE_STDS: dict[Dtype, float] = {"float32": 0.002, "bfloat16": 0.2}
MIN_TOLERANCE_NATS = 1e-3  # nats, if the log-probabilities hardly vary
GOLDEN_RATIO_STRIDE = 0.6180339887498949  # from the golden ratio: multiples modulo 1 spread evenly
# Lengths of the probe texts in tokens, and of the prefix that the first two share. The prefix is
# longer than a cache block of the local engine.
PROBE_TEXT_TOKENS, SHARED_PREFIX_TOKENS = (40, 40, 12), 36


def make_spaced_ids(start: int, count: int, vocab_size: int) -> list[int]:
    """Return `count` ids distributed over a vocabulary of `vocab_size` tokens."""
    return [int(i * GOLDEN_RATIO_STRIDE % 1 * vocab_size) for i in range(start, start + count)]


def make_probe_texts(config: Any) -> list[list[int]]:
    """Return three token sequences, of which two share a prefix, for a model with this
    configuration. They are shortened if the model has fewer positions."""
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
    """Return the maximum mean difference from log-probabilities that rounding can cause, in
    nats."""
    return max(MIN_TOLERANCE_NATS, MAX_DIFFERENCE_STDS[dtype] * float(logprobs.std(correction=0)))


def require_equal_logprobs(
    model: Any, condition: str, dtype: Dtype, actual: Sequence[Tensor], expected: Sequence[Tensor]
) -> None:
    """Raise UserError if log-probabilities computed under `condition` differ from those of plain
    forward passes."""
    actual_logprobs, expected_logprobs = (
        torch.cat(list(actual)).float().cpu(),
        torch.cat(list(expected)).float().cpu(),
    )
    is_finite = expected_logprobs.isfinite()  # overflowing weights are detected when they are used
    if not is_finite.any():
        return
    difference, tolerance = (
        float((actual_logprobs - expected_logprobs)[is_finite].abs().mean()),
        compute_tolerance_nats(dtype, expected_logprobs[is_finite]),
    )
    if not difference <= tolerance:  # also true if either is NaN
        raise UserError(
            f"{type(model).__name__} is not supported for training or sampling because {condition}"
            " its log-probabilities of probe texts differ from a plain forward pass by"
            f" {difference:.3g} nats, more than rounding explains ({tolerance:.3g}): choose an"
            " architecture listed in docs/lab-notes/architectures.md."
        )


@torch.no_grad()
def compute_reference_logprobs(model: Any, ids: Sequence[int]) -> Tensor:
    """Return the log-probabilities [n - 1] of all ids except the first, from a forward pass over
    this text alone."""
    logits = model(torch.tensor([list(ids)], device=model.device), use_cache=False).logits[0]
    return gather_logprobs(logits[:-1], ids[1:])


def gather_logprobs(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Return the log-probability [n] of each id under the logits [n, V]."""
    chosen = torch.tensor(list(ids), device=logits.device)[:, None]
    return logits.float().log_softmax(-1).gather(1, chosen)[:, 0]
