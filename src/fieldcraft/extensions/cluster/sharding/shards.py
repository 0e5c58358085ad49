"""Parallel strategy that shards weights and tokens over the ranks of a mesh.

Each rank holds a shard of every weight (FSDP2 of torch). The weights of a layer are gathered when
it is computed, and freed afterwards. Gradients are summed over the ranks, and each rank keeps the
gradient of its shard. The loss is divided by a total over the whole step, so gradients are not
averaged here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from fieldcraft.engine.sizes import require_rope_length
from fieldcraft.extensions.cluster.sharding.context import ContextShard, shard_batch
from fieldcraft.extensions.cluster.sharding.mesh import RankMesh
from fieldcraft.train.batch import PackedBatch, Sample, SampleUnit, pack, split_micro_batches
from fieldcraft.train.master_weights import MasterWeights
from fieldcraft.train.output_layer import OutputLayer, get_decoder
from fieldcraft.train.packed_attention import NO_MASK


@final
class FsdpStrategy:
    """FSDP and context parallelism of a rank; implements `train.parallel.ParallelStrategy`. All
    ranks execute the same operations in the same order, each with its own share of the units; ranks
    of one micro-batch have the same share."""

    def __init__(self, mesh: RankMesh) -> None:
        self.mesh = mesh
        self._models: dict[Any, nn.Module] = {}
        self._last_shard: tuple[PackedBatch, ContextShard] | None = None

    def shard(
        self, model: Any | None, dtype: torch.dtype | None, head: nn.Module | None = None
    ) -> MasterWeights:
        if head is not None:
            shard_head(head, self.mesh)
        if model is not None:
            self._models[model] = ShardedModel(model, self.mesh, dtype)
        # The shards keep the dtype in which the weights were loaded: they are the masters.
        parameters = () if model is None else model.parameters()
        return MasterWeights(parameters, None, () if head is None else head.parameters())

    def make_micro_batches(
        self, units: Sequence[SampleUnit], micro_batch_tokens: int
    ) -> Iterator[PackedBatch]:
        """Return as many micro-batches as the rank with the most has. Missing ones are padding
        batches."""
        max_tokens = micro_batch_tokens * self.mesh.context_parallel
        batches = list(split_micro_batches(units, max_tokens)) if units else []
        missing = self.mesh.all_reduce_max(len(batches)) - len(batches)
        return iter([*batches, *(make_padding_batch() for _ in range(missing))])

    def compute_hidden_states(self, model: Any, batch: PackedBatch, device: torch.device) -> Tensor:
        require_rope_length(model.config.get_text_config(), batch.max_sequence_tokens)
        context_shard = self._get_shard(batch)
        [hidden_nH] = self._models[model](
            input_ids=context_shard.ids_n[None].to(device),
            attention_mask=NO_MASK.to(device),
            position_ids=context_shard.position_n[None].to(device),
            use_cache=False,
            runs=context_shard.runs,
            context_shard=context_shard if self.mesh.context_parallel > 1 else None,
        )
        return hidden_nH[context_shard.from_t.to(device)]

    def compute_plain_logits(self, model: Any, layer: OutputLayer, ids_n: Tensor) -> Tensor:
        """Compute logits with the gathered weights, including the output layer's."""
        [hidden_nH] = self._models[model](input_ids=ids_n[None], use_cache=False)
        return layer(hidden_nH)

    def select_local_tokens(self, batch: PackedBatch) -> Tensor | slice:
        return self._get_shard(batch).local_T

    def all_gather_tokens(self, values_t: Tensor, batch: PackedBatch) -> Tensor:
        return self._get_shard(batch).all_gather_tokens(values_t, len(batch.ids_T))

    def gather_value(self, value: Tensor) -> Tensor:
        return value.full_tensor() if isinstance(value, DTensor) else value

    def invalidate(self) -> None:
        """Free the gathered weights after a change other than an optimizer step."""
        for model in self._models.values():
            free_gathered(model)

    def _get_shard(self, batch: PackedBatch) -> ContextShard:
        """Return this rank's shard of a micro-batch; cached, because it is requested several
        times."""
        if self._last_shard is None or self._last_shard[0] is not batch:
            self._last_shard = (
                batch,
                shard_batch(batch, self.mesh.context_rank, self.mesh.context_group),
            )
        return self._last_shard[1]


def make_padding_batch() -> PackedBatch:
    """Return a padding batch of two samples with two tokens each, which is valid for every
    objective."""
    ids, weight = np.zeros(2, np.int64), np.array([0, 1], np.float32)
    zeros = np.zeros(2, np.float32)
    pair = [Sample(ids, weight, zeros, zeros, zeros, zeros, zeros, zeros) for _ in range(2)]
    return replace(pack(pair), is_padding=True)


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
        hidden_nH: Tensor = get_decoder(self.model)(**inputs).last_hidden_state
        return hidden_nH


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
