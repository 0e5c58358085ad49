"""Sampling of one token per row of a batch, with an independent random stream per row."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def draw_uniforms(seeds: NDArray[np.uint64], counters: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return one number in [0, 1) per row, determined only by its seed and counter.

    SplitMix64 (Steele, Lea and Flood, 2014) with the counter as its state: no generator is stored
    per row, and a row's draws cannot depend on the other rows of the batch. Numbers have 23 bits,
    so that a product with a float32 sum stays below that sum.
    """
    state = _mix(seeds) + counters.astype(np.uint64) * GOLDEN_GAMMA
    return ((_mix(state) >> np.uint64(41)) * np.float64(2**-23)).astype(np.float32)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = z + GOLDEN_GAMMA
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def sample_tokens(
    logits: torch.Tensor, temperatures: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Invert the cumulative distribution of softmax(logits / temperature) at `uniform`.

    logits [N, V] of any float type, temperatures [N] (0 takes the most likely token), uniform [N].
    Returns ids [N] and log-probabilities [N] in float32; for temperature 0 the latter are at
    temperature 1. If a row's logits are not finite, its log-probability is not finite either and
    its id is meaningless; single logits of minus infinity are allowed.
    """
    greedy = temperatures == 0
    scaled = logits.float() / torch.where(greedy, 1.0, temperatures)[:, None]
    logprobs = scaled.log_softmax(-1)
    ids = torch.where(greedy, logits.argmax(-1), invert_cdf(logprobs, uniform))
    return ids, logprobs.gather(1, ids[:, None])[:, 0]


def invert_cdf(logprobs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return the indices [N] at which the cumulative sums of exp(logprobs) [N, V] exceed the
    fraction `uniform` [N] of their total."""
    cumulative = logprobs.exp().cumsum(-1)
    point = (uniform * cumulative[:, -1])[:, None]
    indices = torch.searchsorted(cumulative, point, right=True)[:, 0]
    return indices.clamp_max(logprobs.shape[1] - 1)  # reached only if sums are not finite
