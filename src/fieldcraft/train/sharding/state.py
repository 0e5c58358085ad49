"""The state of a learner in shards: its weights and the moments of its optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fieldcraft.train.trainer import Learner


@final
@dataclass(frozen=True)
class Kept:
    """A learner, and all weights of its modules by name, in shards. Tied weights have two names."""

    learner: Learner
    weights: Mapping[str, Tensor]

    @classmethod
    def of(cls, learner: Learner, *modules: nn.Module) -> Self:
        """Collect the weights of a learner. To be called before a module runs: afterwards the
        weights of a layer may be whole."""
        found: dict[str, Any] = {}
        for module in modules:
            found |= module.state_dict(keep_vars=True)
        return cls(learner, found)

    @property
    def trained(self) -> dict[str, Tensor]:
        """Weights that are trained, each by the first of its names."""
        masters = {id(master) for master in self.learner.weights.masters}
        first: dict[int, str] = {}
        for name, weight in self.weights.items():
            first.setdefault(id(weight), name)
        return {name: self.weights[name] for i, name in first.items() if i in masters}

    def tensors(self) -> dict[str, Any]:
        """Return the tensors of a checkpoint, which share their memory with what is trained."""
        adamw = self.learner.adamw
        moments = {name: _moments(adamw, weight) for name, weight in self.trained.items()}
        return {"weights": self.trained, "moments": moments}


def _moments(adamw: torch.optim.Optimizer, weight: Tensor) -> dict[str, Tensor]:
    """Return AdamW's moments of one weight; those that it would begin with, if it has made no
    step."""
    if weight not in adamw.state:
        adamw.state[weight] = {
            "step": torch.zeros((), device=weight.device),
            "exp_avg": torch.zeros_like(weight, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(weight, requires_grad=False),
        }
    found: dict[str, Tensor] = adamw.state[weight]
    return found


@torch.no_grad()
def gathered(weights: Mapping[str, Tensor], here: bool) -> dict[str, Tensor]:
    """Gather whole weights in the memory of the CPU, where they are wanted, one after the other, so
    that a device holds one at a time. All ranks take part."""
    whole: dict[int, Tensor] = {}
    for weight in weights.values():
        if id(weight) not in whole:
            full = weight.full_tensor() if isinstance(weight, DTensor) else weight
            whole[id(weight)] = full.detach().cpu() if here else full.new_empty(0)
    return {name: whole[id(weight)] for name, weight in weights.items()}
