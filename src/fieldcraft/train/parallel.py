"""The way in which weights and the tokens of a micro-batch lie on processes.

Training asks for hidden states and gets back values of all trained tokens, wherever they were
computed. `SingleProcess` is one process; `sharding/shards.py` has many. Letters: N tokens of a
packed batch, T of them trained, t of those that are predicted in this process, H features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from fieldcraft.engine.sizes import require_rope_length
from fieldcraft.train.batch import PackedBatch, SampleUnit, split_micro_batches
from fieldcraft.train.master_weights import MasterWeights
from fieldcraft.train.output_layer import OutputLayer, compute_hidden_states
from fieldcraft.train.packed_attention import NO_MASK


class ParallelStrategy(Protocol):
    def shard(
        self, model: Any | None, dtype: torch.dtype | None, head: nn.Module | None = None
    ) -> MasterWeights:
        """Lay a model and a head out over the processes, in place, and return what is trained of
        them: the model computes in `dtype`, the head in its own. None: there is nothing to lay."""
        ...

    def make_micro_batches(
        self, units: Sequence[SampleUnit], micro_batch_tokens: int
    ) -> Iterator[PackedBatch]:
        """Return the micro-batches of this process, as many as every other one has.
        `micro_batch_tokens` is what a process holds of one."""
        ...

    def compute_hidden_states(self, model: Any, batch: PackedBatch, device: torch.device) -> Tensor:
        """Compute the last hidden states that predict the trained tokens of this process; [t,
        H]."""
        ...

    def compute_plain_logits(self, model: Any, layer: OutputLayer, ids_n: Tensor) -> Tensor:
        """Compute the logits [n, V] of a text of its own, by the model's own forward pass in every
        process; `layer` is its output layer."""
        ...

    def select_local_tokens(self, batch: PackedBatch) -> Tensor | slice:
        """Return the trained tokens of the T that are predicted in this process."""
        ...

    def all_gather_tokens(self, values_t: Tensor, batch: PackedBatch) -> Tensor:
        """Join the values of the tokens of this process with those of others: [t, ...] gives [T,
        ...]. A gradient goes back to where the value came from."""
        ...

    def gather_value(self, value: Tensor) -> Tensor:
        """Return the whole of a number that was computed from weights, such as the norm of their
        gradient."""
        ...


@final
class SingleProcess:
    """One process: all weights and all tokens are here."""

    def shard(
        self, model: Any | None, dtype: torch.dtype | None, head: nn.Module | None = None
    ) -> MasterWeights:
        parameters = () if model is None else model.parameters()
        return MasterWeights(parameters, dtype, () if head is None else head.parameters())

    def make_micro_batches(
        self, units: Sequence[SampleUnit], micro_batch_tokens: int
    ) -> Iterator[PackedBatch]:
        return split_micro_batches(units, micro_batch_tokens)

    def compute_hidden_states(self, model: Any, batch: PackedBatch, device: torch.device) -> Tensor:
        require_rope_length(model.config.get_text_config(), batch.max_sequence_tokens)
        [hidden_NH] = compute_hidden_states(
            model,
            input_ids=batch.ids_N[None].to(device),
            attention_mask=NO_MASK.to(device),
            position_ids=batch.position_N[None].to(device),
            use_cache=False,
            runs=batch.runs,
        )
        return hidden_NH[batch.from_T.to(device)]

    def compute_plain_logits(self, model: Any, layer: OutputLayer, ids_n: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=ids_n[None], use_cache=False).logits[0]
        return logits

    def select_local_tokens(self, batch: PackedBatch) -> Tensor | slice:
        return slice(None)

    def all_gather_tokens(self, values_t: Tensor, batch: PackedBatch) -> Tensor:
        return values_t

    def gather_value(self, value: Tensor) -> Tensor:
        return value


SINGLE_PROCESS = SingleProcess()
