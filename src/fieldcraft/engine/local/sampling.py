"""The sampling of one token for every row of a batch, each from its own random stream."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def draw_uniforms(seeds: NDArray[np.uint64], counters: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return one number in [0, 1) per row, a function of its seed and counter alone.

    SplitMix64 (Steele, Lea and Flood, 2014), whose state is a counter: no generator is kept per
    row, and what a row draws cannot depend on who shares the batch. 23 bits, so that a product
    with a float32 sum stays below that sum.
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
    Returns ids [N] and log-probabilities [N] in float32, at temperature 1 where it is 0. Where the
    logits are not finite the log-probability is not finite either and the id means nothing;
    single logits of minus infinity are allowed.
    """
    greedy = temperatures == 0
    scaled = logits.float() / torch.where(greedy, 1.0, temperatures)[:, None]
    logprobs = scaled.log_softmax(-1)
    ids = torch.where(greedy, logits.argmax(-1), invert_cdf(logprobs, uniform))
    return ids, logprobs.gather(1, ids[:, None])[:, 0]


def invert_cdf(logprobs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return the places [N] at which the cumulative sums of exp(logprobs) [N, V] pass the share
    `uniform` [N] of their total."""
    cumulative = logprobs.exp().cumsum(-1)
    point = (uniform * cumulative[:, -1])[:, None]
    indices = torch.searchsorted(cumulative, point, right=True)[:, 0]
    return indices.clamp_max(logprobs.shape[1] - 1)  # reached only where sums are not finite
