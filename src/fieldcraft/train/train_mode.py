"""How a model computes while it is trained: as it does when it samples.

Dropout and the jitter of routers are off: the policy that samples has none, and a ratio of the two
would be noise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from fieldcraft.types import UserError

# Names of rates: attention_dropout, resid_pdrop, layerdrop, drop_path, router_jitter_noise.
RATE = re.compile(r"drop|jitter|noise")


def remove_dropout(model: nn.Module) -> None:
    """Set every rate of dropout and jitter of a transformers model to 0, in its modules and in its
    configuration, which some modules read while they compute."""
    modules = list(model.modules())
    configs = [getattr(module, "config", None) for module in modules]
    for holder in (*modules, *(c for c in configs if isinstance(c, PreTrainedConfig))):
        for name in dict(_rates(vars(holder))):
            setattr(holder, name, 0.0)
        if isinstance(holder, nn.modules.dropout._DropoutNd):
            holder.p = 0.0


def checkpoint_activations(model: Any) -> None:
    """Let a transformers model compute activations twice instead of keeping them. Raises UserError
    for an architecture that cannot."""
    if not model.supports_gradient_checkpointing:
        raise UserError(
            f"{type(model).__name__} has no optim.activation_checkpointing: remove that key."
        )
    model.activation_checkpointing_enable()


def dropout_notes(config: PreTrainedConfig) -> list[str]:
    """A sentence on the rates of a configuration that are not 0; no stage uses them."""
    rates = ", ".join(
        f"{name}={rate:g}" for name, rate in _rates(config.get_text_config().to_dict())
    )
    return [f"{rates} of its config.json: dropout and jitter are off"] if rates else []


def _rates(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if RATE.search(name) and isinstance(value, float) and value:
            yield name, value
