"""Plain attention, softmax(q k) v over the past and nothing beside it: which models have it.

A layer may look back a window of tokens only.

Only then can several sequences share a batch, in training and in the local engine. A state that is
carried from token to token (linear attention, state spaces, convolutions) would leak from one into
the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fieldcraft.types import UserError

# What some architectures ask of attention beyond softmax(q k) v; none of it is computed here.
UNSUPPORTED_OPTIONS = ("softcap", "s_aux", "position_bias")
SLIDING_ATTENTION = "sliding_attention"
PLAIN_LAYER_TYPES = {
    "full_attention",
    SLIDING_ATTENTION,
    "sparse",
    "dense",
}  # the last two are kinds of feed-forward


def require_plain_attention(model: Any) -> None:
    """Raise UserError for a model whose attention is not plain, and say what else there is."""
    if reason := describe_special_attention(model):
        raise UserError(
            f"{type(model).__name__} is not supported for training or sampling because {reason}:"
            " choose a model with plain attention."
        )


def describe_special_attention(model: Any) -> str | None:
    """Return the name of what a transformers model has in place of plain attention, found in its
    configuration; None for nothing."""
    config = model.config.get_text_config()
    layer_types = getattr(config, "layer_types", None)
    if layer_types and not PLAIN_LAYER_TYPES.issuperset(layer_types):
        return f"it has layers of the kind {min(set(layer_types) - PLAIN_LAYER_TYPES)}"
    if model._is_stateful:
        return "it carries a state from token to token"
    if not model._supports_attention_backend:
        return "its attention is fixed"
    return None


def find_unsupported_option(module: Any, options: Mapping[str, Any]) -> str | None:
    """Return the option that a layer asks of attention and that is not computed here; None for
    nothing.

    The masks of transformers are not used here, so a layer with a window has to say so itself.
    """
    for name in UNSUPPORTED_OPTIONS:
        if options.get(name) is not None:
            return f"it uses {name}"
    if (options.get("sliding_window") is not None) != _has_sliding_window(module):
        return "its layers do not pass their sliding window to the attention function"
    return None


def _has_sliding_window(module: Any) -> bool:
    """Return whether the configuration gives a layer a window. One that does not know its place
    must say that it has one, if any layer has."""
    config = getattr(module, "config", None)
    layer_types = getattr(config, "layer_types", None)
    if not layer_types:
        return getattr(config, "sliding_window", None) is not None
    layer_index = getattr(module, "layer_idx", None)
    return (
        SLIDING_ATTENTION in layer_types
        if layer_index is None
        else layer_types[layer_index] == SLIDING_ATTENTION
    )
