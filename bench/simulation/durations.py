"""Modelled durations: operations divided by rates, and bytes divided by bandwidths.

docs/lab-notes/scaling.md has the formulas and their sources. They have not been compared with GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from simulation.engines import EngineSpeed

# Achieved share of a device's peak. Llama 3 405B was trained at 0.38 to 0.43 of an H100's dense
# rate (arXiv 2407.21783, table 4), and PaLM at 0.46 of a TPU's (arXiv 2204.02311, table 3).
COMPUTE_EFFICIENCY = 0.4
BANDWIDTH_EFFICIENCY = 0.7  # of memory, in sampling; an assumption
FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Rates of a device and its links, in bytes and operations per second.

    `flops_per_second` is the rate of dense matrix products in bfloat16. `intra_node_bandwidth` is
    the bandwidth from one device to the others of its node, and `inter_node_bandwidth` its share of
    the links between nodes, both one-way. A node has `devices_per_node` devices.
    """

    flops_per_second: float
    memory_bandwidth: float
    intra_node_bandwidth: float
    inter_node_bandwidth: float
    devices_per_node: int = 8

    def get_link_bandwidth(self, ranks: int) -> float:
        """Return the bytes per second that each of `ranks` ranks can send, which the slowest link
        between them limits."""
        if ranks == 1:
            return math.inf
        if ranks <= self.devices_per_node:
            return self.intra_node_bandwidth
        return self.inter_node_bandwidth


H200 = DeviceRates(989e12, 4.8e12, 450e9, 50e9)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Shape of a model: `parameters` used in matrix products (all except the input embedding),
    `dtype_bytes` per number, and `kv_bytes_per_token` of keys and values."""

    parameters: int
    layers: int
    hidden_size: int
    dtype_bytes: int
    kv_bytes_per_token: int

    @property
    def weight_bytes(self) -> int:
        return self.parameters * self.dtype_bytes

    def count_forward_flops(self, tokens: float, mean_length: float) -> float:
        """Return the operations of a forward pass over `tokens` tokens, in texts of `mean_length`:
        two per parameter, and 2 x layers x width per preceding token (length / 2 in the mean),
        twice, for scores and values (Kaplan et al., arXiv 2001.08361, table 1)."""
        return tokens * (2 * self.parameters + 2 * self.layers * self.hidden_size * mean_length)


@dataclass(frozen=True, slots=True)
class ForwardPasses:
    """Computation of a step per token, in units of forward passes: a backward pass counts as two
    (arXiv 2001.08361, section 2.1), and activation checkpointing repeats the forward pass."""

    trained_models: int = 1
    frozen_models: int = (
        0  # references, teachers, and a policy whose log-probabilities are recomputed
    )
    checkpointing: bool = False

    @property
    def total(self) -> int:
        return self.trained_models * (4 if self.checkpointing else 3) + self.frozen_models


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """Cost of training: `ranks` ranks that share one model, and the tokens of each one's
    micro-batches."""

    device: DeviceRates
    ranks: int
    micro_batch_tokens: int

    def step_seconds(
        self, shape: ModelShape, tokens: float, mean_length: float, passes: ForwardPasses
    ) -> float:
        """Return the seconds of a step over `tokens` tokens. Communication and computation overlap,
        so the slower of the two counts."""
        return max(
            self.compute_seconds(shape, tokens, mean_length, passes),
            self.communication_seconds(shape, tokens, passes),
        )

    def compute_seconds(
        self, shape: ModelShape, tokens: float, mean_length: float, passes: ForwardPasses
    ) -> float:
        """Return the seconds of computation: the operations divided by the total rate of the
        ranks."""
        flops = shape.count_forward_flops(tokens, mean_length) * passes.total
        return flops / (self.ranks * self.device.flops_per_second * COMPUTE_EFFICIENCY)

    def communication_seconds(
        self, shape: ModelShape, tokens: float, passes: ForwardPasses
    ) -> float:
        """Return the seconds of communication. For each micro-batch the weights of each layer are
        gathered in the forward pass and again in the backward pass, and their gradients are reduced
        in float32 (FSDP: arXiv 2304.11277, section 3.2). A rank sends and receives all these bytes
        except its own share."""
        micro_batches = max(tokens / (self.ranks * self.micro_batch_tokens), 1)
        gathers = passes.trained_models * 2 + passes.frozen_models
        sent_bytes = shape.parameters * (
            gathers * shape.dtype_bytes + passes.trained_models * FLOAT32_BYTES
        )
        share = (self.ranks - 1) / self.ranks
        return micro_batches * sent_bytes * share / self.device.get_link_bandwidth(self.ranks)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Roofline model of an engine on `num_devices` devices: times of decoding and prefill.

    A decoding step reads all weights, and the keys and values of all rows, and multiplies each row
    with all weights. The slower of the two counts (Pope et al., arXiv 2211.05102, section 2.1).
    """

    shape: ModelShape
    device: DeviceRates
    num_devices: int = 1

    def decode_seconds(self, rows: int, cached_tokens: float) -> float:
        """Return the seconds of decoding one token of each of `rows` rows, which have
        `cached_tokens` tokens in total."""
        read_bytes = self.shape.weight_bytes + cached_tokens * self.shape.kv_bytes_per_token
        return max(
            read_bytes / (self.num_devices * self.device.memory_bandwidth * BANDWIDTH_EFFICIENCY),
            2
            * rows
            * self.shape.parameters
            / (self.num_devices * self.device.flops_per_second * COMPUTE_EFFICIENCY),
        )

    def prefill_seconds(self, tokens: float) -> float:
        """Return the seconds of the prefill of `tokens` tokens."""
        return (
            2
            * tokens
            * self.shape.parameters
            / (self.num_devices * self.device.flops_per_second * COMPUTE_EFFICIENCY)
        )


def estimate_broadcast_seconds(
    shape: ModelShape, device: DeviceRates, num_trainers: int, num_engines: int
) -> float:
    """Return the seconds of the broadcast of weights to all engines: a pipelined broadcast sends
    each byte once over the slowest link (Sanders et al. 2009, doi 10.1016/j.parco.2009.09.001)."""
    return shape.weight_bytes / device.get_link_bandwidth(max(num_trainers + num_engines, 2))


@dataclass(frozen=True, slots=True)
class RolloutLoad:
    """Rollouts of a step: their number, and means per rollout. `policy_tokens` is the mean number
    of tokens of the policy, and `mean_tokens` of all tokens. The longest rollout has
    `max_policy_tokens` tokens of the policy, and waits `max_tool_seconds` seconds for its tools."""

    count: int
    policy_tokens: float
    mean_tokens: float
    max_policy_tokens: float
    max_tool_seconds: float = 0.0

    @property
    def total_tokens(self) -> float:
        return self.count * self.mean_tokens


def estimate_sampling_seconds(
    speed: EngineSpeed, engines: int, rows: int, rollouts: RolloutLoad, max_staleness: int = 0
) -> float:
    """Return the mean seconds in which `engines` engines sample the rollouts of a step.

    An engine uses rows for the rollouts of this step and of `max_staleness` further ones. The mean
    length of a growing text is half its final length. Rollouts in flight are recomputed when new
    weights are published. The longest rollout is a lower bound, regardless of the number of
    engines: during it, 1 + `max_staleness` steps may complete.
    """
    concurrent = rollouts.count * (1 + max_staleness) / engines
    rows_in_use = max(round(min(rows, concurrent)), 1)
    seconds_per_token = speed.decode_seconds(rows_in_use, rows_in_use * rollouts.mean_tokens / 2)
    rollouts_per_engine = rollouts.count / engines
    recomputed_tokens = concurrent * rollouts.mean_tokens / 2 if max_staleness else 0.0
    prefill_seconds = speed.prefill_seconds(
        rollouts_per_engine * (rollouts.mean_tokens - rollouts.policy_tokens) + recomputed_tokens
    )
    longest_seconds = (
        rollouts.max_policy_tokens * seconds_per_token + rollouts.max_tool_seconds
    ) / (1 + max_staleness)
    return max(
        rollouts_per_engine * rollouts.policy_tokens / rows_in_use * seconds_per_token
        + prefill_seconds,
        longest_seconds,
    )


@dataclass(frozen=True, slots=True)
class DeviceSplit:
    """Split into training devices and sampling engines; `seconds` is the time of a step."""

    trainers: int
    engines: int
    seconds: float


def find_best_split(
    devices: int,
    tensor_parallel: int,
    training_seconds: Callable[[int], float],
    sampling_seconds: Callable[[int], float],
    min_trainers: int = 1,
) -> DeviceSplit | None:
    """Return the split of devices that minimises the time of the slower side, because both run
    concurrently, with at least `min_trainers` trainers. None if there are too few devices."""
    candidates = [
        DeviceSplit(devices - engines * tensor_parallel, engines, 0.0)
        for engines in range(1, devices // tensor_parallel + 1)
        if devices - engines * tensor_parallel >= min_trainers
    ]
    timed = [
        DeviceSplit(
            candidate.trainers,
            candidate.engines,
            max(training_seconds(candidate.trainers), sampling_seconds(candidate.engines)),
        )
        for candidate in candidates
    ]
    return min(timed, key=lambda split: split.seconds, default=None)
