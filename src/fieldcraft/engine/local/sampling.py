"""Sampling of one token per row of a batch, with an independent random stream per row.

Within the limits of `fieldcraft.sampling.Truncation`, a step considers only the most likely tokens
of each row, because sorting the vocabulary would cost more than the rest of sampling. Shape
letters: N rows, V vocabulary entries, K candidates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
INITIAL_CANDIDATES = 64  # initial number of candidates of a row without top_k
TIE_CANDIDATES = 32  # candidates beyond top_k, which may tie with the last one within it
CANDIDATE_GROWTH_FACTOR = 16  # growth factor if the candidates do not suffice


class TruncationLimits(NamedTuple):
    """Truncation limits of N rows, each of shape [N]; top_k is 0 for rows without one."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def select(self, rows: Tensor) -> TruncationLimits:
        """Return the limits of the selected rows."""
        return TruncationLimits(self.top_k[rows], self.top_p[rows], self.min_p[rows])


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


def sample_rows(
    logits: Tensor, row_parameters: Tensor, truncated: NDArray[np.bool_]
) -> tuple[Tensor, Tensor]:
    """Sample ids [N] with log-probabilities [N] from logits [N, V], like `sample_tokens`.

    `row_parameters` [5, N] contains the temperature of each row, a uniform number and its limits in
    the order of `TruncationLimits`. The limits apply only to the rows in the mask `truncated` [N].
    """
    temperatures, uniform, *limit_columns = row_parameters
    if not truncated.any():
        return sample_tokens(logits, temperatures, uniform)
    truncation = TruncationLimits(*limit_columns)
    if truncated.all():
        return sample_truncated(logits, temperatures, uniform, truncation)
    ids, logprobs = uniform.new_empty(len(uniform), dtype=torch.long), torch.empty_like(uniform)
    is_short = torch.from_numpy(truncated).to(logits.device)
    is_full = ~is_short
    ids[is_full], logprobs[is_full] = sample_tokens(
        logits[is_full], temperatures[is_full], uniform[is_full]
    )
    ids[is_short], logprobs[is_short] = sample_truncated(
        logits[is_short], temperatures[is_short], uniform[is_short], truncation.select(is_short)
    )
    return ids, logprobs


def sample_tokens(logits: Tensor, temperatures: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
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


def sample_truncated(
    logits: Tensor, temperatures: Tensor, uniform: Tensor, truncation: TruncationLimits
) -> tuple[Tensor, Tensor]:
    """Sample ids [N] with log-probabilities [N] from the truncated, renormalised distribution,
    whose cumulative sum in id order is inverted at `uniform`. Temperatures must be above 0;
    otherwise as `sample_tokens`."""
    scaled = logits.float() / temperatures[:, None]
    num_candidates = int(truncation.top_k.amax()) + TIE_CANDIDATES
    return _sample_among_likeliest(
        scaled,
        uniform,
        truncation,
        num_candidates if truncation.top_k.all() else max(num_candidates, INITIAL_CANDIDATES),
    )


def _sample_among_likeliest(
    scaled: Tensor, uniform: Tensor, truncation: TruncationLimits, num_candidates: int
) -> tuple[Tensor, Tensor]:
    """Sample like `sample_truncated` from the `num_candidates` most likely tokens, or from more if
    these do not suffice."""
    vocab_size = scaled.shape[1]
    values, tokens = scaled.topk(min(num_candidates, vocab_size))
    is_candidate, is_certain = mask_candidates(values, scaled.logsumexp(-1), truncation)
    candidate_logits = torch.where(is_candidate, values, -torch.inf)
    logprobs = candidate_logits - candidate_logits.logsumexp(-1, keepdim=True)
    # In id order, which the other rows of the batch cannot change.
    tokens, order = tokens.sort(-1)
    logprobs = logprobs.gather(1, order)
    indices = invert_cdf(logprobs, uniform)[:, None]
    ids, chosen = tokens.gather(1, indices)[:, 0], logprobs.gather(1, indices)[:, 0]
    is_uncertain = ~is_certain & values[:, -1].isfinite()
    if num_candidates < vocab_size and is_uncertain.any():
        ids[is_uncertain], chosen[is_uncertain] = _sample_among_likeliest(
            scaled[is_uncertain],
            uniform[is_uncertain],
            truncation.select(is_uncertain),
            num_candidates * CANDIDATE_GROWTH_FACTOR,
        )
    return ids, chosen


def mask_candidates(
    values: Tensor, total: Tensor, truncation: TruncationLimits
) -> tuple[Tensor, Tensor]:
    """Return a mask [N, K] of the candidates that pass the limits, and a mask [N] of the rows for
    which no other token does.

    `values` [N, K] are the highest logits of each row in descending order, and `total` [N] is the
    log-sum-exp over its vocabulary. If K is the whole vocabulary, the second mask is irrelevant.
    """
    likely = values[:, :1] + truncation.min_p.log()[:, None]  # log(0) drops nothing
    last = (truncation.top_k.clamp(1, values.shape[1]) - 1)[:, None].long()
    within = torch.where(truncation.top_k[:, None] > 0, values.gather(1, last), -torch.inf)
    inside = (values >= likely) & (values >= within)
    # top_p is a share of the mass that top_k and min_p leave: of the full vocabulary if they leave
    # it.
    remaining = torch.where(inside, values, -torch.inf)
    bounded = ~inside[:, -1]
    shares = (remaining - torch.where(bounded, remaining.logsumexp(-1), total)[:, None]).exp()
    preceding = shares.cumsum(-1) - shares
    reached = (preceding < truncation.top_p[:, None]).sum(-1, keepdim=True).clamp_min(1) - 1
    nucleus = torch.where(truncation.top_p[:, None] < 1, values.gather(1, reached), -torch.inf)
    is_candidate = inside & (values >= nucleus)
    unlimited = (truncation.top_k == 0) & (truncation.min_p == 0)
    return is_candidate, ~is_candidate[:, -1] & (bounded | unlimited)


def invert_cdf(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """Return the indices [N] at which the cumulative sums of exp(logprobs) [N, V] exceed the
    fraction `uniform` [N] of their total."""
    cumulative = logprobs.exp().cumsum(-1)
    point = (uniform * cumulative[:, -1])[:, None]
    indices = torch.searchsorted(cumulative, point, right=True)[:, 0]
    return indices.clamp_max(logprobs.shape[1] - 1)  # reached only if sums are not finite
