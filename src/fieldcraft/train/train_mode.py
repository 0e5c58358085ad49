"""Training mode of a model, in which it computes exactly as in sampling.

Dropout and router jitter are off: the sampling policy has none, so they would add noise to the
policy ratio. Both are off in evaluation mode, so the whole model stays in that mode, except layers
with activation checkpointing, for which transformers requires training mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer

from fieldcraft.types import UserError

DROPOUT_PATTERN = re.compile(r"drop")  # attention_dropout, resid_pdrop, layerdrop, drop_path
RATE_PATTERN = re.compile(r"drop|jitter")


def remove_dropout(model: nn.Module) -> None:
    """Set all dropout rates of a transformers model to 0, in its modules and in its configuration,
    which some modules read in the forward pass. Jitter rates are not changed: PhiMoE also uses them
    for expert selection in sampling."""
    modules = list(model.modules())
    configs = [getattr(module, "config", None) for module in modules]
    for holder in (*modules, *(c for c in configs if isinstance(c, PreTrainedConfig))):
        for name in dict(_iter_rates(vars(holder), DROPOUT_PATTERN)):
            setattr(holder, name, 0.0)
        if isinstance(holder, nn.modules.dropout._DropoutNd):
            holder.p = 0.0


def set_train_mode(model: nn.Module) -> None:
    """Put the model in evaluation mode, and only layers with activation checkpointing in training
    mode."""
    model.eval()
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True


def checkpoint_activations(model: Any) -> None:
    """Let a transformers model recompute activations instead of storing them. Raises UserError if
    the architecture does not support it."""
    if not model.supports_gradient_checkpointing:
        raise UserError(
            f"{type(model).__name__} does not support optim.activation_checkpointing: remove that"
            " key."
        )
    model.activation_checkpointing_enable()


def describe_dropout(config: PreTrainedConfig) -> list[str]:
    """Return a note on the nonzero dropout and jitter rates of a configuration, which no stage
    uses."""
    rates = ", ".join(
        f"{name}={rate:g}"
        for name, rate in _iter_rates(config.get_text_config().to_dict(), RATE_PATTERN)
    )
    return [f"{rates} of its config.json: dropout and jitter are off"] if rates else []


def _iter_rates(values: Mapping[str, Any], names: re.Pattern[str]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if names.search(name) and isinstance(value, float) and value:
            yield name, value
