"""Sizes of a model, by whatever names its configuration has for them.

Letters: `config` is that of the text part of a transformers model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fieldcraft.types import UserError

FEED_FORWARD = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "inner_dim", "dff")
KEYS = ("num_key_value_heads", "num_attention_heads")


def feed_forward_width(config: Any) -> int:
    """Return the width of the feed-forward part of a layer; where none is given it is 4 times that
    of the model, as in GPT-2."""
    return _first(config, FEED_FORWARD) or 4 * int(config.hidden_size)


def key_value_heads(config: Any) -> int:
    """Return the number of heads with keys of their own; at most all heads."""
    return _first(config, KEYS) or 1


def positions(config: Any) -> int | None:
    """Return the number of tokens of the longest text that a model can read; None where there is no
    bound.

    Beyond `length_limit` it could read on, but not as one policy.
    """
    bounds = [getattr(config, "max_position_embeddings", None), length_limit(config)]
    return min((bound for bound in bounds if bound is not None), default=None)


def length_limit(config: Any) -> int | None:
    """Return the number of tokens within which the rotary embeddings of a text do not depend on the
    longest text beside it; None: they never do.

    Those of the types `dynamic` and `longrope` are others for all positions as soon as one position
    in the batch is beyond the limit. So a text would change with its neighbours in a packed batch,
    and a session would be another text than the keys that it has in a cache.
    """
    bounds = []
    for rope in _ropes(config):
        if rope.get("rope_type") == "longrope":
            bounds.append(int(rope["original_max_position_embeddings"]))
        elif rope.get("rope_type") == "dynamic":
            bounds.append(int(config.max_position_embeddings))
    return min(bounds, default=None)


def require_within(config: Any, tokens: int) -> None:
    """Raise UserError for a text of so many tokens, if it would change those beside it."""
    limit = length_limit(config)
    if limit is not None and tokens > limit:
        raise UserError(
            f"a text has {tokens} tokens, and beyond {limit} the rotary embeddings of"
            f" {config.model_type} change for all texts beside it: set budget.total_tokens={limit}"
            " or less."
        )


def session_tokens(config: Any, wanted: int | None) -> int:
    """Return the number of tokens of a session of an engine: those wanted, else as many as the
    model has positions.

    Raises UserError for more than the model can read as one policy, and where nothing says how many
    there may be.
    """
    limit, most = length_limit(config), positions(config)
    if wanted is not None and limit is not None and wanted > limit:
        raise UserError(
            f"engine.max_len={wanted} is more than the {limit} tokens beyond which the rotary"
            f" embeddings of {config.model_type} change for all texts: set engine.max_len={limit}"
            " or less."
        )
    if wanted is None and most is None:
        raise UserError(
            f"the configuration of {config.model_type} does not say how long a text may be: set"
            " engine.max_len."
        )
    return wanted or int(most or 0)


def _ropes(config: Any) -> Iterator[dict[str, Any]]:
    """Yield the rotary embeddings of a configuration: one kind, or one for each kind of layer."""
    found = getattr(config, "rope_parameters", None) or {}
    for rope in (found, *found.values()):
        if isinstance(rope, dict):
            yield rope


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    found = (getattr(config, name, None) for name in names)
    return next((int(size) for size in found if isinstance(size, int) and size), None)
