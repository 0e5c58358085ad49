"""The costs of a run: operations over rates, and bytes over bandwidths.

docs/lab-notes/scaling.md has the formulas, and where they are from.
"""

from __future__ import annotations

from dataclasses import dataclass

from fieldcraft.scaling.devices import Device, get_link_bandwidth

# What is reached of a device's peak. Llama 3 405B trained with 0.38 to 0.43 of an H100's dense rate
# (arXiv 2407.21783, table 4), and PaLM with 0.46 of a TPU's (arXiv 2204.02311, table 3).
COMPUTE_EFFICIENCY = 0.4
BANDWIDTH_EFFICIENCY = 0.7  # of memory, while rows are sampled; an assumption
FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model in numbers: `parameters` that multiply (all but the input embedding), `dtype_bytes`
    of one number, `kv_bytes_per_token` of the keys and values of a token."""

    parameters: int
    layers: int
    hidden_size: int
    dtype_bytes: int
    kv_bytes_per_token: int

    @property
    def weight_bytes(self) -> int:
        return self.parameters * self.dtype_bytes

    def count_forward_flops(self, tokens: float, mean_length: float) -> float:
        """Return the operations of a forward pass over so many tokens, in texts of this length: two
        for each parameter, and 2 x layers x width for each of the tokens before, of which there are
        length / 2 in the mean, twice: scores and values (Kaplan et al., arXiv 2001.08361, table
        1)."""
        return tokens * (2 * self.parameters + 2 * self.layers * self.hidden_size * mean_length)


@dataclass(frozen=True, slots=True)
class ForwardPasses:
    """The computation of a step with every token, in forward passes: a backward pass is two (arXiv
    2001.08361, section 2.1), and activation checkpointing computes the forward one again."""

    trained_models: int = 1  # models
    frozen_models: int = (
        0  # models, as references and teachers, and a policy whose probabilities are anew
    )
    checkpointing: bool = False

    @property
    def total(self) -> int:
        return self.trained_models * (4 if self.checkpointing else 3) + self.frozen_models


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """The trainers of a run: so many ranks that share one model, and the tokens of a micro-batch of
    each."""

    device: Device
    ranks: int
    micro_batch_tokens: int

    def step_seconds(
        self, shape: ModelShape, tokens: float, mean_length: float, passes: ForwardPasses
    ) -> float:
        """Return the seconds of a step over so many tokens. Links and products work at the same
        time, so the slower of the two counts."""
        return max(
            self.compute_seconds(shape, tokens, mean_length, passes),
            self.communication_seconds(shape, tokens, passes),
        )

    def compute_seconds(
        self, shape: ModelShape, tokens: float, mean_length: float, passes: ForwardPasses
    ) -> float:
        """Return the seconds of computing: the operations, over what the ranks reach together."""
        flops = shape.count_forward_flops(tokens, mean_length) * passes.total
        return flops / (self.ranks * self.device.flops_per_second * COMPUTE_EFFICIENCY)

    def communication_seconds(
        self, shape: ModelShape, tokens: float, passes: ForwardPasses
    ) -> float:
        """Return the seconds of communication. For each micro-batch the weights of each layer are
        gathered before they are read, again in the backward pass, and their gradients in float32
        are added up (FSDP: arXiv 2304.11277, section 3.2). A rank sends and receives all but its
        own share of these bytes."""
        micro_batches = max(tokens / (self.ranks * self.micro_batch_tokens), 1)
        gathers = passes.trained_models * 2 + passes.frozen_models
        sent_bytes = shape.parameters * (
            gathers * shape.dtype_bytes + passes.trained_models * FLOAT32_BYTES
        )
        share = (self.ranks - 1) / self.ranks
        return micro_batches * sent_bytes * share / get_link_bandwidth(self.device, self.ranks)


@dataclass(frozen=True, slots=True)
class Roofline:
    """An engine on `num_devices` devices: the time that one token of all its rows takes, and a
    prompt.

    A step reads all weights, and the keys and values of all rows; and it multiplies each row with
    all weights. The slower of the two counts (Pope et al., arXiv 2211.05102, section 2.1).
    """

    shape: ModelShape
    device: Device
    num_devices: int = 1

    def decode_seconds(self, rows: int, cached_tokens: float) -> float:
        """Return the seconds for a token of each of `rows` rows, which hold so many tokens
        together."""
        read_bytes = self.shape.weight_bytes + cached_tokens * self.shape.kv_bytes_per_token
        return max(
            read_bytes / (self.num_devices * self.device.memory_bandwidth * BANDWIDTH_EFFICIENCY),
            2
            * rows
            * self.shape.parameters
            / (self.num_devices * self.device.flops_per_second * COMPUTE_EFFICIENCY),
        )

    def prefill_seconds(self, tokens: float) -> float:
        """Return the seconds until so many tokens of prompts are read."""
        return (
            2
            * tokens
            * self.shape.parameters
            / (self.num_devices * self.device.flops_per_second * COMPUTE_EFFICIENCY)
        )


def estimate_broadcast_seconds(
    shape: ModelShape, device: Device, num_trainers: int, num_engines: int
) -> float:
    """Return the seconds until all engines have the weights: a pipelined broadcast sends each byte
    once over the slowest link (Sanders et al. 2009, doi 10.1016/j.parco.2009.09.001)."""
    return shape.weight_bytes / get_link_bandwidth(device, max(num_trainers + num_engines, 2))
