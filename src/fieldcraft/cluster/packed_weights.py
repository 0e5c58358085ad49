"""Weights in transit from trainers to engines, as arrays in Ray's object store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldcraft.engine.vllm.weights import ProbeLogprobs
from fieldcraft.train.lora import TRAINED_ADAPTER

ByteArray = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """Tensor as plain bytes, because numpy has no bfloat16."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: ByteArray


@dataclass(frozen=True)
class PackedWeightSnapshot:
    """Weight snapshot for engines. `tensors` is a `dict[str, PackedTensor]`, or Ray's handle of
    one. `probe` has the log-probabilities that the trained model assigns to the probe."""

    version: int
    tensors: Any
    nbytes: int
    probe: ProbeLogprobs


def pack_tensors(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, PackedTensor]:
    """Return the tensors of a state, converted to a dtype; tied tensors are included once."""
    packed: dict[str, PackedTensor] = {}
    for name, tensor in drop_tied(state).items():
        cpu_tensor = tensor.detach().to("cpu", dtype).contiguous()
        data = cpu_tensor.reshape(-1).view(torch.uint8).numpy()
        packed[name] = PackedTensor(dtype, tuple(tensor.shape), data)
    return packed


def drop_tied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a state, with one of each set of tied tensors (shared memory)."""
    tensors: dict[tuple[int, torch.Size], tuple[str, Tensor]] = {}
    for name, tensor in state.items():
        tensors.setdefault((tensor.data_ptr(), tensor.shape), (name, tensor))
    return dict(tensors.values())


def count_bytes(packed: Mapping[str, PackedTensor]) -> int:
    """Return the size of packed tensors in bytes."""
    return sum(tensor.data.nbytes for tensor in packed.values())


def unpack_tensor(packed: PackedTensor) -> Tensor:
    """Return a packed tensor as a tensor with its own memory."""
    flat = torch.from_numpy(packed.data.copy())  # Ray's memory is shared and read-only
    return flat.view(packed.dtype).reshape(packed.shape)


@torch.no_grad()
def load_weights(model: Any, packed: Mapping[str, PackedTensor]) -> None:
    """Load the weights into a model, in place and in its dtype. Raises KeyError for an unknown
    name."""
    parameters = model.state_dict(keep_vars=True)
    for name, packed_tensor in packed.items():
        parameters[name].copy_(unpack_tensor(packed_tensor))


def merge_lora_state(state: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Return a state of a model with the adapter merged (LoRA, arXiv 2106.09685, section 4.1),
    keyed by the names of the model without adapter."""
    plain = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in state.items()
        if ".lora_" not in name
    }
    for name, down in state.items():
        if name.endswith(f".lora_A.{TRAINED_ADAPTER}.weight"):
            layer = name.removesuffix(f".lora_A.{TRAINED_ADAPTER}.weight")
            up = state[f"{layer}.lora_B.{TRAINED_ADAPTER}.weight"]
            scale = model.get_submodule(layer).scaling[TRAINED_ADAPTER]
            weight = f"{layer}.weight"
            plain[weight] = plain[weight].float() + scale * (up.float() @ down.float())
    return plain
