"""Weights and tokens on the ranks of a mesh: `ParallelStrategy` of a rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fieldcraft.engine.sizes import require_rope_length
from fieldcraft.train.batch import PackedBatch, Sample, SampleUnit, pack, split_micro_batches
from fieldcraft.train.master_weights import MasterWeights
from fieldcraft.train.output_layer import OutputLayer
from fieldcraft.train.packed_attention import NO_MASK
from fieldcraft.train.sharding.context import ContextShard, shard_batch
from fieldcraft.train.sharding.fsdp import ShardedModel, free_gathered, shard_head
from fieldcraft.train.sharding.mesh import RankMesh


@final
class FsdpStrategy:
    """The weights and tokens of a rank; obeys `train.parallel.ParallelStrategy`. All ranks do the
    same things in the same order, each with its own share of the units; those that share a
    micro-batch have the same share."""

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
        # The parts of the weights stay in the type that they are loaded in: they are the masters.
        parameters = () if model is None else model.parameters()
        return MasterWeights(parameters, None, () if head is None else head.parameters())

    def make_micro_batches(
        self, units: Sequence[SampleUnit], micro_batch_tokens: int
    ) -> Iterator[PackedBatch]:
        """Yield as many micro-batches as the rank with the most has. What is missing is
        `is_padding`."""
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
        """Compute logits by the whole weights, of which the output layer has its own."""
        [hidden_nH] = self._models[model](input_ids=ids_n[None], use_cache=False)
        return layer(hidden_nH)

    def select_local_tokens(self, batch: PackedBatch) -> Tensor | slice:
        return self._get_shard(batch).local_T

    def all_gather_tokens(self, values_t: Tensor, batch: PackedBatch) -> Tensor:
        return self._get_shard(batch).all_gather_tokens(values_t, len(batch.ids_T))

    def gather_value(self, value: Tensor) -> Tensor:
        return value.full_tensor() if isinstance(value, DTensor) else value

    def invalidate(self) -> None:
        """Forget what is whole of the weights, which have changed in another way than by a step."""
        for model in self._models.values():
            free_gathered(model)

    def _get_shard(self, batch: PackedBatch) -> ContextShard:
        """Return the part that this rank holds of a micro-batch; it is asked for several times."""
        if self._last_shard is None or self._last_shard[0] is not batch:
            self._last_shard = (
                batch,
                shard_batch(batch, self.mesh.context_rank, self.mesh.context_group),
            )
        return self._last_shard[1]


def make_padding_batch() -> PackedBatch:
    """Return an idle batch of two tokens each, which every objective can be computed of."""
    ids, weight = np.zeros(2, np.int64), np.array([0, 1], np.float32)
    zeros = np.zeros(2, np.float32)
    pair = [Sample(ids, weight, zeros, zeros, zeros, zeros, zeros, zeros) for _ in range(2)]
    return replace(pack(pair), is_padding=True)
