"""Sharded models: each rank holds a shard of every weight (FSDP2 of torch).

The weights of a layer are gathered when it is computed, and freed afterwards. Gradients are summed
over the ranks, and each rank keeps the gradient of its shard. The loss is divided by a total over
the whole step, so gradients are not averaged here.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from fieldcraft.extensions.cluster.sharding.mesh import RankMesh
from fieldcraft.train.output_layer import compute_hidden_states


@final
class ShardedModel(nn.Module):
    """Sharded transformers causal LM: each layer is a unit, and the rest is one unit. After the
    forward pass, weights outside the layers stay gathered until the backward pass, so that the
    output layer can be used separately, also with tied embeddings."""

    def __init__(self, model: Any, mesh: RankMesh, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.model = model
        # Gradients are rounded once, when they are computed, and are summed in float32.
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype and torch.float32)
        layer_types = set(model._no_split_modules or ())
        for module in list(model.modules()):
            if type(module).__name__ in layer_types:
                fully_shard(module, mesh=mesh.device_mesh, mp_policy=policy)
        fully_shard(self, mesh=mesh.device_mesh, mp_policy=policy, reshard_after_forward=False)
        use_sum_reduction(self)

    def forward(self, **inputs: Any) -> Tensor:
        return compute_hidden_states(self.model, **inputs)


def shard_head(head: nn.Module, mesh: RankMesh) -> None:
    """Shard a separate layer, in float32."""
    fully_shard(head, mesh=mesh.device_mesh)
    use_sum_reduction(head)


def free_gathered(root: nn.Module) -> None:
    """Free the gathered weights of a `ShardedModel` after its forward pass; they are gathered again
    when needed."""
    assert isinstance(root, FSDPModule)
    root.reshard()


def use_sum_reduction(root: nn.Module) -> None:
    """Reduce gradients by sum over the ranks. gloo supports only sums; NCCL then does not divide
    either."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
