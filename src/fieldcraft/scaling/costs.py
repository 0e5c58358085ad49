"""The costs of a run: operations over rates, and bytes over bandwidths.

docs/lab-notes/scaling.md has the formulas, and where they are from.
"""

from __future__ import annotations

from dataclasses import dataclass

from fieldcraft.scaling.devices import Device, wires

# What is reached of a device's peak. Llama 3 405B trained with 0.38 to 0.43 of an H100's dense rate
# (arXiv 2407.21783, table 4), and PaLM with 0.46 of a TPU's (arXiv 2204.02311, table 3).
COMPUTE = 0.4
BANDWIDTH = 0.7  # of memory, while rows are sampled; an assumption
FLOAT = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """A model in numbers: `parameters` that multiply (all but the input embedding), `bytes` of one
    number, `token_bytes` of the keys and values of a token."""

    parameters: int
    layers: int
    width: int
    bytes: int
    token_bytes: int

    @property
    def weight_bytes(self) -> int:
        return self.parameters * self.bytes

    def operations(self, tokens: float, length: float) -> float:
        """Return the operations of a forward pass over so many tokens, in texts of this length: two
        for each parameter, and 2 x layers x width for each of the tokens before, of which there are
        length / 2 in the mean, twice: scores and values (Kaplan et al., arXiv 2001.08361, table
        1)."""
        return tokens * (2 * self.parameters + 2 * self.layers * self.width * length)


@dataclass(frozen=True, slots=True)
class Passes:
    """The computation of a step with every token, in forward passes: a backward pass is two (arXiv
    2001.08361, section 2.1), and activation checkpointing computes the forward one again."""

    trained: int = 1  # models
    read: int = 0  # models, as references and teachers, and a policy whose probabilities are anew
    checkpointing: bool = False

    @property
    def forward(self) -> int:
        return self.trained * (4 if self.checkpointing else 3) + self.read


@dataclass(frozen=True, slots=True)
class Trainers:
    """The trainers of a run: so many ranks that share one model, and the tokens of a micro-batch of
    each."""

    device: Device
    ranks: int
    micro_tokens: int

    def seconds(self, shape: Shape, tokens: float, length: float, passes: Passes) -> float:
        """Return the seconds of a step over so many tokens. Wires and products work at the same
        time, so the slower of the two counts."""
        return max(
            self.computing(shape, tokens, length, passes), self.talking(shape, tokens, passes)
        )

    def computing(self, shape: Shape, tokens: float, length: float, passes: Passes) -> float:
        """Return the seconds of computing: the operations, over what the ranks reach together."""
        operations = shape.operations(tokens, length) * passes.forward
        return operations / (self.ranks * self.device.rate * COMPUTE)

    def talking(self, shape: Shape, tokens: float, passes: Passes) -> float:
        """Return the seconds of communication. For each micro-batch the weights of each layer are
        gathered before they are read, again in the backward pass, and their gradients in float32
        are added up (FSDP: arXiv 2304.11277, section 3.2). A rank sends and receives all but its
        own share of these bytes."""
        rounds = max(tokens / (self.ranks * self.micro_tokens), 1)
        gathered = passes.trained * 2 + passes.read
        sent = shape.parameters * (gathered * shape.bytes + passes.trained * FLOAT)
        share = (self.ranks - 1) / self.ranks
        return rounds * sent * share / wires(self.device, self.ranks)


@dataclass(frozen=True, slots=True)
class Roofline:
    """An engine on `devices` devices: the time that one token of all its rows takes, and a prompt.

    A step reads all weights, and the keys and values of all rows; and it multiplies each row with
    all weights. The slower of the two counts (Pope et al., arXiv 2211.05102, section 2.1).
    """

    shape: Shape
    device: Device
    devices: int = 1

    def step(self, rows: int, tokens: float) -> float:
        """Return the seconds for a token of each of `rows` rows, which hold so many tokens
        together."""
        read = self.shape.weight_bytes + tokens * self.shape.token_bytes
        return max(
            read / (self.devices * self.device.bandwidth * BANDWIDTH),
            2 * rows * self.shape.parameters / (self.devices * self.device.rate * COMPUTE),
        )

    def prefill(self, tokens: float) -> float:
        """Return the seconds until so many tokens of prompts are read."""
        return 2 * tokens * self.shape.parameters / (self.devices * self.device.rate * COMPUTE)


def publishing(shape: Shape, device: Device, trainers: int, engines: int) -> float:
    """Return the seconds until all engines have the weights: a pipelined broadcast sends each byte
    once over the slowest wire (Sanders et al. 2009, doi 10.1016/j.parco.2009.09.001)."""
    return shape.weight_bytes / wires(device, max(trainers + engines, 2))
