"""The mode of a model while it is trained: it computes as it does when it samples.

Dropout and the jitter of routers are off: the policy that samples has none, and a ratio of the two
would be noise. Both are off outside of training anyway, so all of a model stays in that mode, but
for layers that compute their activations twice: transformers asks whether these are in training.
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
    """Set every rate of dropout of a transformers model to 0, in its modules and in its
    configuration, which some modules read while they compute. Rates of jitter stay: PhiMoE also
    chooses by them between experts when it samples."""
    modules = list(model.modules())
    configs = [getattr(module, "config", None) for module in modules]
    for holder in (*modules, *(c for c in configs if isinstance(c, PreTrainedConfig))):
        for name in dict(_iter_rates(vars(holder), DROPOUT_PATTERN)):
            setattr(holder, name, 0.0)
        if isinstance(holder, nn.modules.dropout._DropoutNd):
            holder.p = 0.0


def set_train_mode(model: nn.Module) -> None:
    """Let layers compute their activations twice where that is asked for; nothing else changes."""
    model.eval()
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True


def checkpoint_activations(model: Any) -> None:
    """Let a transformers model compute activations twice instead of keeping them. Raises UserError
    for an architecture that cannot."""
    if not model.supports_gradient_checkpointing:
        raise UserError(
            f"{type(model).__name__} has no optim.activation_checkpointing: remove that key."
        )
    model.activation_checkpointing_enable()


def describe_dropout(config: PreTrainedConfig) -> list[str]:
    """Return a note on the rates of a configuration that are not 0; no stage uses them."""
    rates = ", ".join(
        f"{name}={rate:g}"
        for name, rate in _iter_rates(config.get_text_config().to_dict(), RATE_PATTERN)
    )
    return [f"{rates} of its config.json: dropout and jitter are off"] if rates else []


def _iter_rates(values: Mapping[str, Any], names: re.Pattern[str]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if names.search(name) and isinstance(value, float) and value:
            yield name, value
