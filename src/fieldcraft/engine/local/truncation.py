"""Sampling from the most likely tokens alone: the limits of `sampling.Truncation`.

A step looks at the most likely tokens of each row and not at a sorted vocabulary, which would cost
more than all the rest of sampling. Letters: N rows, V words, K candidates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldcraft.engine.local.sampling import invert_cdf, sample_tokens

INITIAL_CANDIDATES = 64  # of a row without top_k, at first
TIE_CANDIDATES = 32  # candidates beyond top_k, which may be as likely as the last one within it
CANDIDATE_GROWTH_FACTOR = 16  # times as many are looked at where the first ones do not suffice


class TruncationLimits(NamedTuple):
    """The limits of N rows, each of shape [N]; top_k is 0 where there is none."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def select(self, rows: Tensor) -> TruncationLimits:
        """Return the limits of some rows."""
        return TruncationLimits(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def sample_rows(
    logits: Tensor, row_parameters: Tensor, truncated: NDArray[np.bool_]
) -> tuple[Tensor, Tensor]:
    """Sample ids [N] with log-probabilities [N] from logits [N, V], as `sampling.sample_tokens`
    gives them.

    `row_parameters` [5, N] are the temperature of each row, a uniform number and its limits, in the
    order of `TruncationLimits`, which only the rows `truncated` [N] have.
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


def sample_truncated(
    logits: Tensor, temperatures: Tensor, uniform: Tensor, truncation: TruncationLimits
) -> tuple[Tensor, Tensor]:
    """Sample ids [N] with log-probabilities [N] from the truncated, renormalised distribution,
    inverted at `uniform` in the order of the ids. Temperatures are above 0; for the rest see
    `sampling.sample_tokens`."""
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
    """Sample in the same way among the `num_candidates` likeliest tokens, or among more where these
    do not suffice."""
    vocab_size = scaled.shape[1]
    values, tokens = scaled.topk(min(num_candidates, vocab_size))
    is_candidate, is_certain = mask_candidates(values, scaled.logsumexp(-1), truncation)
    candidate_logits = torch.where(is_candidate, values, -torch.inf)
    logprobs = candidate_logits - candidate_logits.logsumexp(-1, keepdim=True)
    # In the order of their ids, which no neighbour in the batch can change.
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
    """Return a mask [N, K] of the likeliest tokens that are kept, and a mask [N] of the rows for
    which these are all.

    `values` [N, K] are the highest logits of each row, descending, and `total` [N] is the log of
    the sum of exp over all of its words. Where K is the whole vocabulary, the second does not
    matter.
    """
    likely = values[:, :1] + truncation.min_p.log()[:, None]  # log(0) drops nothing
    last = (truncation.top_k.clamp(1, values.shape[1]) - 1)[:, None].long()
    within = torch.where(truncation.top_k[:, None] > 0, values.gather(1, last), -torch.inf)
    inside = (values >= likely) & (values >= within)
    # top_p is a share of what the others have left: of all words where they leave everything.
    remaining = torch.where(inside, values, -torch.inf)
    bounded = ~inside[:, -1]
    shares = (remaining - torch.where(bounded, remaining.logsumexp(-1), total)[:, None]).exp()
    preceding = shares.cumsum(-1) - shares
    reached = (preceding < truncation.top_p[:, None]).sum(-1, keepdim=True).clamp_min(1) - 1
    nucleus = torch.where(truncation.top_p[:, None] < 1, values.gather(1, reached), -torch.inf)
    is_candidate = inside & (values >= nucleus)
    unlimited = (truncation.top_k == 0) & (truncation.min_p == 0)
    return is_candidate, ~is_candidate[:, -1] & (bounded | unlimited)
