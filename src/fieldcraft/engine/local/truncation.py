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

from fieldcraft.engine.local.sampling import invert, sample

CANDIDATES = 64  # of a row without top_k, at first
TIES = 32  # candidates beyond top_k, which may be as likely as the last one within it
GROWTH = 16  # times as many are looked at where the first ones do not suffice


class Cut(NamedTuple):
    """The limits of N rows, each of shape [N]; top_k is 0 where there is none."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def of(self, rows: Tensor) -> Cut:
        """Return the limits of some rows."""
        return Cut(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def sample_rows(
    logits: Tensor, numbers: Tensor, truncated: NDArray[np.bool_]
) -> tuple[Tensor, Tensor]:
    """Sample ids [N] with log-probabilities [N] from logits [N, V], as `sampling.sample` gives
    them.

    `numbers` [5, N] are the temperature of each row, a uniform number and its limits, in the order
    of `Cut`, which only the rows `truncated` [N] have.
    """
    temperatures, uniform, *limits = numbers
    if not truncated.any():
        return sample(logits, temperatures, uniform)
    cut = Cut(*limits)
    if truncated.all():
        return sample_truncated(logits, temperatures, uniform, cut)
    ids, logprobs = uniform.new_empty(len(uniform), dtype=torch.long), torch.empty_like(uniform)
    short = torch.from_numpy(truncated).to(logits.device)
    whole = ~short
    ids[whole], logprobs[whole] = sample(logits[whole], temperatures[whole], uniform[whole])
    ids[short], logprobs[short] = sample_truncated(
        logits[short], temperatures[short], uniform[short], cut.of(short)
    )
    return ids, logprobs


def sample_truncated(
    logits: Tensor, temperatures: Tensor, uniform: Tensor, cut: Cut
) -> tuple[Tensor, Tensor]:
    """Sample ids [N] with log-probabilities [N] from the truncated, renormalised distribution,
    inverted at `uniform` in the order of the ids. Temperatures are above 0; for the rest see
    `sampling.sample`."""
    scaled = logits.float() / temperatures[:, None]
    most = int(cut.top_k.amax()) + TIES
    return _among(scaled, uniform, cut, most if cut.top_k.all() else max(most, CANDIDATES))


def _among(scaled: Tensor, uniform: Tensor, cut: Cut, most: int) -> tuple[Tensor, Tensor]:
    """Sample in the same way among the `most` likeliest tokens, or among more where these do not
    suffice."""
    words = scaled.shape[1]
    values, tokens = scaled.topk(min(most, words))
    kept, known = keep(values, scaled.logsumexp(-1), cut)
    left = torch.where(kept, values, -torch.inf)
    logprobs = left - left.logsumexp(-1, keepdim=True)
    # In the order of their ids, which no neighbour in the batch can change.
    tokens, order = tokens.sort(-1)
    logprobs = logprobs.gather(1, order)
    places = invert(logprobs, uniform)[:, None]
    ids, chosen = tokens.gather(1, places)[:, 0], logprobs.gather(1, places)[:, 0]
    short = ~known & values[:, -1].isfinite()
    if most < words and short.any():
        ids[short], chosen[short] = _among(
            scaled[short], uniform[short], cut.of(short), most * GROWTH
        )
    return ids, chosen


def keep(values: Tensor, total: Tensor, cut: Cut) -> tuple[Tensor, Tensor]:
    """Return a mask [N, K] of the likeliest tokens that are kept, and a mask [N] of the rows for
    which these are all.

    `values` [N, K] are the highest logits of each row, descending, and `total` [N] is the log of
    the sum of exp over all of its words. Where K is the whole vocabulary, the second does not
    matter.
    """
    likely = values[:, :1] + cut.min_p.log()[:, None]  # log(0) drops nothing
    last = (cut.top_k.clamp(1, values.shape[1]) - 1)[:, None].long()
    within = torch.where(cut.top_k[:, None] > 0, values.gather(1, last), -torch.inf)
    inside = (values >= likely) & (values >= within)
    # top_p is a share of what the others have left: of all words where they leave everything.
    left = torch.where(inside, values, -torch.inf)
    bounded = ~inside[:, -1]
    shares = (left - torch.where(bounded, left.logsumexp(-1), total)[:, None]).exp()
    before = shares.cumsum(-1) - shares
    reached = (before < cut.top_p[:, None]).sum(-1, keepdim=True).clamp_min(1) - 1
    nucleus = torch.where(cut.top_p[:, None] < 1, values.gather(1, reached), -torch.inf)
    kept = inside & (values >= nucleus)
    unlimited = (cut.top_k == 0) & (cut.min_p == 0)
    return kept, ~kept[:, -1] & (bounded | unlimited)
