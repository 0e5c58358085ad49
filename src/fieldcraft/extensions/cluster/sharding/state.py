"""Sharded state of a trained module: weights and optimizer moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fieldcraft.train.trainer import OptimizedModule


@final
@dataclass(frozen=True)
class ShardedState:
    """Trained module, and all its sharded weights by name. Tied weights have two names."""

    module: OptimizedModule
    weights: Mapping[str, Tensor]

    @classmethod
    def collect(cls, optimized: OptimizedModule, *modules: nn.Module) -> Self:
        """Collect the weights of a trained module. Call it before a module runs, because afterwards
        the weights of a layer may be gathered."""
        weights: dict[str, Any] = {}
        for module in modules:
            weights |= module.state_dict(keep_vars=True)
        return cls(optimized, weights)

    @property
    def trained_weights(self) -> dict[str, Tensor]:
        """Trained weights, each under the first of its names."""
        masters = {id(master) for master in self.module.weights.masters}
        first: dict[int, str] = {}
        for name, weight in self.weights.items():
            first.setdefault(id(weight), name)
        return {name: self.weights[name] for i, name in first.items() if i in masters}

    def checkpoint_tensors(self) -> dict[str, Any]:
        """Return the tensors of a checkpoint, which share memory with the trained ones."""
        adamw = self.module.adamw
        moments = {
            name: _get_moments(adamw, weight) for name, weight in self.trained_weights.items()
        }
        return {"weights": self.trained_weights, "moments": moments}


def _get_moments(adamw: torch.optim.Optimizer, weight: Tensor) -> dict[str, Tensor]:
    """Return AdamW's moments of one weight; the initial ones before the first step."""
    if weight not in adamw.state:
        adamw.state[weight] = {
            "step": torch.zeros((), device=weight.device),
            "exp_avg": torch.zeros_like(weight, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(weight, requires_grad=False),
        }
    moments: dict[str, Tensor] = adamw.state[weight]
    return moments


@torch.no_grad()
def gather_full(weights: Mapping[str, Tensor], keep_result: bool) -> dict[str, Tensor]:
    """Gather full weights, one after the other, so that a device holds one at a time. Ranks with
    `keep_result` store them in CPU memory. All ranks must take part."""
    full: dict[int, Tensor] = {}
    for weight in weights.values():
        if id(weight) not in full:
            tensor = weight.full_tensor() if isinstance(weight, DTensor) else weight
            full[id(weight)] = tensor.detach().cpu() if keep_result else tensor.new_empty(0)
    return {name: full[id(weight)] for name, weight in weights.items()}
