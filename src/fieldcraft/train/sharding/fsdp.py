"""Models in shards: each rank holds a part of every weight (FSDP2 of torch).

The weights of a layer are gathered when it is computed, and dropped behind it. Gradients are added
up over the ranks, and each rank keeps those of its part. The loss is divided by a number of the
whole step, so there is nothing to divide here.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from fieldcraft.train.output_layer import compute_hidden_states
from fieldcraft.train.sharding.mesh import RankMesh


@final
class ShardedModel(nn.Module):
    """A transformers causal LM in shards: every layer by itself, and all else together. Behind its
    forward, what is not in a layer is whole until the backward pass, so that the output layer can
    be used, by itself and with tied embeddings too."""

    def __init__(self, model: Any, mesh: RankMesh, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.model = model
        # Gradients are rounded once, where they arise, and are added up in float32.
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
    """Shard a layer that stands alone, in float32."""
    fully_shard(head, mesh=mesh.device_mesh)
    use_sum_reduction(head)


def free_gathered(root: nn.Module) -> None:
    """Free what is whole of a `ShardedModel` behind its forward; it is gathered anew when it is
    needed."""
    assert isinstance(root, FSDPModule)
    root.reshard()


def use_sum_reduction(root: nn.Module) -> None:
    """Let gradients be sums over the ranks. gloo can only add; NCCL too then divides by nothing."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
