"""Attention in packed batches: each sequence attends to itself alone, and no mask is made.

A mask of 32,768 tokens would have a billion places. Instead each sequence is cut out and attended
to causally by torch's fused kernel, whose memory is linear in the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from fieldcraft.engine.attention import UNSUPPORTED
from fieldcraft.train.batch import Span
from fieldcraft.types import UserError

ATTENTION = "fieldcraft_packed"


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    spans: Sequence[Span] | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: `query` [1, Hq, N, D] gives [1, N, Hq, D].

    `spans` are those of a packed batch, one behind the other. Without them the model is not being
    trained, and attends as usual.

    Raises UserError for an architecture whose attention is more than softmax(q k) v.
    """
    if spans is None:
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
    share = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    mixed = [
        scaled_dot_product_attention(
            query[:, :, start:end],
            key[:, :, start:end],
            value[:, :, start:end],
            dropout_p=dropout,
            is_causal=True,
            scale=scaling,
        )
        for start, end in spans
    ]
    return torch.cat(mixed, 2).transpose(1, 2), None


def attend_within_spans(model: Any) -> None:
    """From now on a transformers model attends by `attend`; without `spans` as it did before."""
    model.config._attn_implementation = ATTENTION


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
# With a mask of four dimensions transformers makes none of its own; `attend` does not look at it.
NO_MASK = torch.ones(1, 1, 1, 1, dtype=torch.bool)
