"""Parallel strategies: distribution of weights and micro-batch tokens over processes.

Training requests hidden states, and gathers the values of all trained tokens, regardless of the
process that computed them. `SingleProcess` is one process; the extension `cluster` implements
several. Shape letters: N tokens of a packed batch, T trained tokens, t of them predicted in this
process, H features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from fieldcraft.engine.sizes import require_rope_length
from fieldcraft.train.batch import PackedBatch, SampleUnit, split_micro_batches
from fieldcraft.train.master_weights import MasterWeights
from fieldcraft.train.output_layer import OutputLayer, get_decoder
from fieldcraft.train.packed_attention import NO_MASK


class ParallelStrategy(Protocol):
    def shard(
        self, model: Any | None, dtype: torch.dtype | None, head: nn.Module | None = None
    ) -> MasterWeights:
        """Shard a model and a head over the processes, in place, and return the trained weights.
        The model computes in `dtype`, the head in its own dtype. None: there is no model, or no
        head."""
        ...

    def make_micro_batches(
        self, units: Sequence[SampleUnit], micro_batch_tokens: int
    ) -> Iterator[PackedBatch]:
        """Return the micro-batches of this process, the same number as on every other process.
        `micro_batch_tokens` is the number of tokens of a micro-batch per process."""
        ...

    def compute_hidden_states(self, model: Any, batch: PackedBatch, device: torch.device) -> Tensor:
        """Compute the last hidden states [t, H] that predict the trained tokens of this process."""
        ...

    def compute_plain_logits(self, model: Any, layer: OutputLayer, ids_n: Tensor) -> Tensor:
        """Compute the logits [n, V] of a single text by the model's own forward pass, in every
        process; `layer` is its output layer."""
        ...

    def select_local_tokens(self, batch: PackedBatch) -> Tensor | slice:
        """Return the indices, among the T trained tokens, of those predicted in this process."""
        ...

    def all_gather_tokens(self, values_t: Tensor, batch: PackedBatch) -> Tensor:
        """Gather the token values of all processes: [t, ...] gives [T, ...]. Gradients flow back to
        the process that computed the value."""
        ...

    def gather_value(self, value: Tensor) -> Tensor:
        """Return the full value of a number that was computed from sharded weights, such as the
        gradient norm."""
        ...


@final
class SingleProcess:
    """Strategy with one process, which holds all weights and all tokens."""

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
        output = get_decoder(model)(
            input_ids=batch.ids_N[None].to(device),
            attention_mask=NO_MASK.to(device),
            position_ids=batch.position_N[None].to(device),
            use_cache=False,
            runs=batch.runs,
        )
        [hidden_NH] = output.last_hidden_state
        hidden_TH: Tensor = hidden_NH[batch.from_T.to(device)]
        return hidden_TH

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
