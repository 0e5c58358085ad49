"""Weights and tokens on the ranks of a mesh: `Spread` of a rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fieldcraft.engine.sizes import require_within
from fieldcraft.train.attention import NO_MASK
from fieldcraft.train.batch import PackedBatch, Sample, Unit, micro_batches, pack
from fieldcraft.train.output_layer import OutputLayer
from fieldcraft.train.sharding.context import Part, part_of
from fieldcraft.train.sharding.fsdp import Root, drop_whole, shard_head
from fieldcraft.train.sharding.mesh import Mesh
from fieldcraft.train.weights import Weights


@final
class Shards:
    """The weights and tokens of a rank; obeys `train.spread.Spread`. All ranks do the same things
    in the same order, each with its own share of the units; those that share a micro-batch have the
    same share."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._roots: dict[Any, nn.Module] = {}
        self._last: tuple[PackedBatch, Part] | None = None

    def weights(
        self, model: Any | None, dtype: torch.dtype | None, head: nn.Module | None = None
    ) -> Weights:
        if head is not None:
            shard_head(head, self.mesh)
        if model is not None:
            self._roots[model] = Root(model, self.mesh, dtype)
        # The parts of the weights stay in the type that they are loaded in: they are the masters.
        parameters = () if model is None else model.parameters()
        return Weights(parameters, None, () if head is None else head.parameters())

    def batches(self, units: Sequence[Unit], micro_tokens: int) -> Iterator[PackedBatch]:
        """Yield as many micro-batches as the rank with the most has. What is missing is `idle`."""
        room = micro_tokens * self.mesh.context
        found = list(micro_batches(units, room)) if units else []
        missing = self.mesh.most(len(found)) - len(found)
        return iter([*found, *(idle_batch() for _ in range(missing))])

    def states(self, model: Any, batch: PackedBatch, device: torch.device) -> Tensor:
        require_within(model.config.get_text_config(), batch.longest)
        part = self._part(batch)
        [hidden_nH] = self._roots[model](
            input_ids=part.ids_n[None].to(device),
            attention_mask=NO_MASK.to(device),
            position_ids=part.position_n[None].to(device),
            use_cache=False,
            runs=part.runs,
            part=part if self.mesh.context > 1 else None,
        )
        return hidden_nH[part.from_t.to(device)]

    def plain_logits(self, model: Any, layer: OutputLayer, ids_n: Tensor) -> Tensor:
        """Compute logits by the whole weights, of which the output layer has its own."""
        [hidden_nH] = self._roots[model](input_ids=ids_n[None], use_cache=False)
        return layer(hidden_nH)

    def here(self, batch: PackedBatch) -> Tensor | slice:
        return self._part(batch).own_T

    def join(self, values_t: Tensor, batch: PackedBatch) -> Tensor:
        return self._part(batch).join(values_t, len(batch.ids_T))

    def whole(self, value: Tensor) -> Tensor:
        return value.full_tensor() if isinstance(value, DTensor) else value

    def forget(self) -> None:
        """Forget what is whole of the weights, which have changed in another way than by a step."""
        for root in self._roots.values():
            drop_whole(root)

    def _part(self, batch: PackedBatch) -> Part:
        """Return the part that this rank holds of a micro-batch; it is asked for several times."""
        if self._last is None or self._last[0] is not batch:
            self._last = (batch, part_of(batch, self.mesh.part, self.mesh.together))
        return self._last[1]


def idle_batch() -> PackedBatch:
    """Return an idle batch of two tokens each, which every objective can be computed of."""
    ids, weight = np.zeros(2, np.int64), np.array([0, 1], np.float32)
    zeros = np.zeros(2, np.float32)
    pair = [Sample(ids, weight, zeros, zeros, zeros, zeros, zeros, zeros) for _ in range(2)]
    return replace(pack(pair), idle=True)
