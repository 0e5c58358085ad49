"""Attention in packed batches: run by run, so that there is no mask of all tokens.

A mask of 32,768 tokens would have a billion places. Instead each run is cut out, together with what
it continues, and goes through torch's fused kernel, whose memory is linear in the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from fieldcraft.engine.attention import UNSUPPORTED
from fieldcraft.train.batch import Run
from fieldcraft.types import UserError

ATTENTION = "fieldcraft_packed"


class Held(Protocol):
    """What one of several processes holds of a packed batch."""

    @property
    def mine(self) -> Sequence[int]:
        """Places of the runs that it computes, in the order in which it holds them."""
        ...

    def gather(self, parts: Tensor) -> Tensor:
        """What all of them hold: [..., n, D] gives [..., N, D]."""
        ...


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    runs: Sequence[Run] | None = None,
    part: Held | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: `query` [1, Hq, N, D] gives [1, N, Hq, D].

    `runs` are those of a packed batch, of which this process may hold only a `part`. Without them
    the model is not being trained, and attends as usual.

    Raises UserError for an architecture whose attention is more than softmax(q k) v.
    """
    if runs is None:
        usual: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return usual
    for name in UNSUPPORTED:
        if options.get(name) is not None:
            raise UserError(
                f"{type(module).__name__} cannot be trained, because it uses {name}: choose a model"
                " with plain full attention."
            )
    if part is not None:
        key, value = part.gather(torch.stack([key, value]))
    share = query.shape[1] // key.shape[1]
    if share > 1:
        key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    sizes = [run.end - run.start for run in runs]
    # Cut once: the gradient of a slice has the size of what it is cut from.
    keys, values = key.split(sizes, 2), value.split(sizes, 2)
    places = range(len(runs)) if part is None else part.mine
    mixed = [
        scaled_dot_product_attention(
            asking,
            _seen(keys, place, runs),
            _seen(values, place, runs),
            attn_mask=_mask(place, runs, query.device),
            dropout_p=dropout,
            is_causal=runs[place].after is None,
            scale=scaling,
        )
        for place, asking in zip(places, query.split([sizes[p] for p in places], 2), strict=True)
    ]
    return torch.cat(mixed, 2).transpose(1, 2), None


def _way(place: int, runs: Sequence[Run]) -> list[int]:
    """Places of a run and of those that it continues, first to last."""
    after = runs[place].after
    return [*([] if after is None else _way(after, runs)), place]


def _seen(parts: Sequence[Tensor], place: int, runs: Sequence[Run]) -> Tensor:
    """Of the keys or values of all runs, those that one run sees."""
    way = _way(place, runs)
    return parts[place] if len(way) == 1 else torch.cat([parts[p] for p in way], 2)


def _mask(place: int, runs: Sequence[Run], device: torch.device) -> Tensor | None:
    """What each token of a run sees of it: all of what it continues, and itself up to the token.
    None where it continues nothing: then the kernel needs no mask."""
    own, *before = (runs[p] for p in reversed(_way(place, runs)))
    if not before:
        return None
    size, past = own.end - own.start, sum(run.end - run.start for run in before)
    return torch.ones(size, past + size, dtype=torch.bool, device=device).tril(past)


def attend_by_runs(model: Any) -> None:
    """From now on a transformers model attends by `attend`; without `runs` as it did before."""
    model.config._attn_implementation = ATTENTION


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
# With a mask of four dimensions transformers makes none of its own; `attend` does not look at it.
NO_MASK = torch.ones(1, 1, 1, 1, dtype=torch.bool)
