"""Checks that a model has plain attention: softmax(q k) v over past tokens, without additions.

A layer may have a sliding window.

Only with plain attention can several sequences share a batch, in training and in the local engine.
A recurrent state (linear attention, state space models, convolutions) would leak from one sequence
into the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fieldcraft.types import UserError

# Options that some architectures pass to attention beyond softmax(q k) v; none is implemented here.
UNSUPPORTED_OPTIONS = ("softcap", "s_aux", "position_bias")
FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"  # layer types
PLAIN_LAYER_TYPES = {
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    "sparse",
    "dense",
}  # the last two name feed-forward types


def require_plain_attention(model: Any) -> None:
    """Raise UserError if the model's attention is not plain, and state the reason."""
    if reason := describe_special_attention(model):
        raise UserError(
            f"{type(model).__name__} is not supported for training or sampling because {reason}:"
            " choose a model with plain attention."
        )


def describe_special_attention(model: Any) -> str | None:
    """Return the reason why a transformers model does not have plain attention, determined from its
    configuration. None if it has plain attention."""
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
    """Return the description of an attention option that a layer uses and that is not implemented
    here. None if there is none.

    The masks of transformers are not used here, so a layer with a sliding window must pass it as an
    option.
    """
    for name in UNSUPPORTED_OPTIONS:
        if options.get(name) is not None:
            return f"it uses {name}"
    if (options.get("sliding_window") is not None) != _has_sliding_window(module):
        return "its layers do not pass their sliding window to the attention function"
    return None


def _has_sliding_window(module: Any) -> bool:
    """Return whether the configuration defines a sliding window for a layer. A layer without a
    `layer_idx` is expected to have one if any layer has."""
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
