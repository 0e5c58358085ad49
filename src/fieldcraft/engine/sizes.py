"""Sizes of a model, read under the various names that configurations use.

`config` is the text configuration of a transformers model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fieldcraft.types import UserError

FEED_FORWARD_KEYS = (
    "intermediate_size",
    "ffn_dim",
    "ffn_hidden_size",
    "n_inner",
    "inner_dim",
    "dff",
)
KEY_VALUE_HEAD_KEYS = ("num_key_value_heads", "num_attention_heads")


def get_feed_forward_width(config: Any) -> int:
    """Return the feed-forward width of a layer. If none is configured, it is 4 times the hidden
    size, as in GPT-2."""
    return _first_size(config, FEED_FORWARD_KEYS) or 4 * int(config.hidden_size)


def get_num_key_value_heads(config: Any) -> int:
    """Return the number of key-value heads, at most the number of attention heads."""
    return _first_size(config, KEY_VALUE_HEAD_KEYS) or 1


def get_max_positions(config: Any) -> int | None:
    """Return the maximum number of tokens of a text that a model can read. None if unbounded.

    The limit includes `get_rope_length_limit`: a longer text is possible, but not under one
    consistent policy.
    """
    bounds = [getattr(config, "max_position_embeddings", None), get_rope_length_limit(config)]
    return min((bound for bound in bounds if bound is not None), default=None)


def get_rope_length_limit(config: Any) -> int | None:
    """Return the length in tokens up to which the rotary embeddings of a text do not depend on the
    longest text in the batch. None if they never do.

    The types `dynamic` and `longrope` change the embeddings of all positions as soon as one
    position in the batch exceeds the limit. A text would then depend on its neighbours in a packed
    batch, and a session would become inconsistent with its cached keys.
    """
    bounds = []
    for rope in _rope_parameters(config):
        if rope.get("rope_type") == "longrope":
            bounds.append(int(rope["original_max_position_embeddings"]))
        elif rope.get("rope_type") == "dynamic":
            bounds.append(int(config.max_position_embeddings))
    return min(bounds, default=None)


def require_rope_length(config: Any, tokens: int) -> None:
    """Raise UserError if a text with this number of tokens would change the other texts in its
    batch."""
    limit = get_rope_length_limit(config)
    if limit is not None and tokens > limit:
        raise UserError(
            f"a text has {tokens} tokens; beyond {limit} tokens the rotary embeddings of"
            f" {config.model_type} change for every text in the batch: set"
            f" budget.max_context_tokens={limit} or less."
        )


def resolve_session_tokens(config: Any, requested_tokens: int | None) -> int:
    """Return the maximum number of tokens of an engine's session: the requested number, or the
    number of positions of the model.

    Raises UserError if the requested number exceeds the rotary limit, or if neither number is
    known.
    """
    limit, max_positions = get_rope_length_limit(config), get_max_positions(config)
    if requested_tokens is not None and limit is not None and requested_tokens > limit:
        raise UserError(
            f"engine.max_model_len={requested_tokens} is more than the {limit} tokens beyond which"
            f" the rotary embeddings of {config.model_type} change for all texts: set"
            f" engine.max_model_len={limit} or less."
        )
    if requested_tokens is None and max_positions is None:
        raise UserError(
            f"the configuration of {config.model_type} does not state a maximum text length: set"
            " engine.max_model_len."
        )
    return requested_tokens or int(max_positions or 0)


def _rope_parameters(config: Any) -> Iterator[dict[str, Any]]:
    """Yield the rotary embedding settings of a configuration: shared, or one per layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    for rope in (parameters, *parameters.values()):
        if isinstance(rope, dict):
            yield rope


def _first_size(config: Any, names: tuple[str, ...]) -> int | None:
    sizes = (getattr(config, name, None) for name in names)
    return next((int(size) for size in sizes if isinstance(size, int) and size), None)
