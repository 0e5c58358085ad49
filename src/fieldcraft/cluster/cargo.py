"""Weights on their way from trainers to engines, as arrays that Ray carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldcraft.engine.vllm.weights import Proof
from fieldcraft.train.lora import TRAINED

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor as plain bytes: numpy has no bfloat16."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: Bytes


@dataclass(frozen=True)
class Cargo:
    """A policy that engines are to sample from. `tensors` is a `dict[str, Packed]`, or Ray's handle
    of one, and `proof` what the trained model says of the probe."""

    version: int
    tensors: Any
    bytes: int
    proof: Proof


def pack(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Packed]:
    """Return the tensors of a state, converted to a type, with tied ones once."""
    packed: dict[str, Packed] = {}
    for name, tensor in once(state).items():
        whole = tensor.detach().to("cpu", dtype).contiguous()
        data = whole.reshape(-1).view(torch.uint8).numpy()
        packed[name] = Packed(dtype, tuple(tensor.shape), data)
    return packed


def once(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the first of the tensors that share their memory (tied ones), and all others."""
    found: dict[tuple[int, torch.Size], tuple[str, Tensor]] = {}
    for name, tensor in state.items():
        found.setdefault((tensor.data_ptr(), tensor.shape), (name, tensor))
    return dict(found.values())


def size(packed: Mapping[str, Packed]) -> int:
    """Return the size of packed tensors in bytes."""
    return sum(one.data.nbytes for one in packed.values())


def unpack(one: Packed) -> Tensor:
    """Return a packed tensor as a tensor with memory of its own."""
    flat = torch.from_numpy(one.data.copy())  # what Ray gives is shared, and read-only
    return flat.view(one.dtype).reshape(one.shape)


@torch.no_grad()
def load(model: Any, packed: Mapping[str, Packed]) -> None:
    """Load the weights into a model, in place and in its own type. Raises KeyError for a name that
    it does not have."""
    own = model.state_dict(keep_vars=True)
    for name, one in packed.items():
        own[name].copy_(unpack(one))


def merged(state: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Return a state of a model, by the names that it has without an adapter. What the adapter adds
    is added (LoRA, arXiv 2106.09685, section 4.1)."""
    plain = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in state.items()
        if ".lora_" not in name
    }
    for name, down in state.items():
        if name.endswith(f".lora_A.{TRAINED}.weight"):
            layer = name.removesuffix(f".lora_A.{TRAINED}.weight")
            up = state[f"{layer}.lora_B.{TRAINED}.weight"]
            scale = model.get_submodule(layer).scaling[TRAINED]
            weight = f"{layer}.weight"
            plain[weight] = plain[weight].float() + scale * (up.float() @ down.float())
    return plain
