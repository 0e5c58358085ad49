"""Weights in transit from trainers.

They are arrays in Ray's object store for engines, and broadcasts of the first rank for servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldcraft.engine.model_files import write_model
from fieldcraft.engine.weights import TensorMeta, WeightSnapshot, merge_lora, run_probe
from fieldcraft.extensions.cluster.remote import import_ray
from fieldcraft.extensions.vllm.worker.fieldcraft_wire import (
    CHANNEL_ERRORS,
    BroadcastChannel,
    make_tensor_metas,
)

ByteArray = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """Tensor as plain bytes, because numpy has no bfloat16."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: ByteArray


def pack_model(model: Any, dtype: torch.dtype, version: int) -> WeightSnapshot:
    """Return a snapshot of a model in this process for engines, converted to a dtype; an adapter is
    merged."""
    tensors = pack_tensors(dict(merge_lora(model.state_dict(), model)), dtype)
    handle = import_ray().put(tensors)
    return WeightSnapshot(version, run_probe(model), count_bytes(tensors), handle=handle)


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


@final
class WeightSender:
    """Published weights by label, which do not change while training continues.

    Args:
        host: address of this machine for the rendezvous with servers.
        device: device from which tensors are sent: by NCCL from a GPU, else by gloo.
    """

    def __init__(self, host: str, device: torch.device) -> None:
        self._host = host
        self._device = device
        self._stored: dict[str, tuple[Any, dict[str, Tensor]]] = {}
        self._channel: BroadcastChannel | None = None

    def store(
        self,
        label: str,
        model: Any,
        state: Mapping[str, Tensor],
        dtype: torch.dtype,
        retained_labels: Sequence[str],
    ) -> list[TensorMeta]:
        """Store the state of a model, converted to a dtype, and drop stored ones except
        `retained_labels`. Return the metadata of the tensors, which receivers need."""
        self._stored = {
            name: stored for name, stored in self._stored.items() if name in retained_labels
        }
        tensors = {
            name: tensor.detach().to("cpu", dtype, copy=True).contiguous()
            for name, tensor in drop_tied(state).items()
        }
        self._stored[label] = model, tensors
        return make_tensor_metas(tensors)

    def open_channel(self, world_size: int) -> tuple[str, int]:
        """Open a rendezvous of this process with `world_size - 1` receivers, and return its host
        and port. An earlier channel is closed."""
        if self._channel is not None:
            self._channel.close()
        self._channel = BroadcastChannel(self._host, 0, 0, world_size, self._device)
        return self._host, self._channel.port

    def send(self, label: str) -> str:
        """Send weights to all receivers. Return the reason if this failed, else an empty string."""
        assert self._channel is not None
        try:
            self._channel.send(self._stored[label][1])
        except CHANNEL_ERRORS as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def write(self, label: str, folder: Path) -> None:
        """Write weights into a folder in the format of transformers."""
        model, tensors = self._stored[label]
        write_model(folder, model, dict(tensors))
