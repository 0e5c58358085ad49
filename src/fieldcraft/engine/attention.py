"""Whether a model's attention is plain: softmax(q k) v over all of the past, and nothing beside it.

Only then can several sequences share a batch, in training and in the local engine. A sliding window
would be lost where they are kept apart, and a state that is carried from token to token (linear
attention, state spaces, convolutions) would leak from one into the next.
"""

from __future__ import annotations

from typing import Any

from fieldcraft.types import UserError

# What some architectures ask of attention beyond softmax(q k) v; none of it is computed here.
UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")
PLAIN = {"full_attention", "sparse", "dense"}  # the last two are kinds of feed-forward layers


def refuse_special_attention(model: Any) -> None:
    """Raises UserError for a model whose attention is not plain, and says what else there is."""
    if what := special_attention(model):
        raise UserError(
            f"{type(model).__name__} can be neither trained nor sampled from here, because {what}:"
            " choose a model with plain full attention."
        )


def special_attention(model: Any) -> str | None:
    """What a transformers model has in place of plain attention, found in its configuration."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds and not PLAIN.issuperset(kinds):
        return f"it has layers of the kind {min(set(kinds) - PLAIN)}"
    if model._is_stateful:
        return "it carries a state from token to token"
    if not model._supports_attention_backend:
        return "its attention is fixed"
    window = getattr(config, "sliding_window", None)
    if window is not None and not kinds:
        return f"its attention looks back {window} tokens only (sliding_window)"
    return None
