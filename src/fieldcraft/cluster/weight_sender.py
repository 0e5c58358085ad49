"""Weight snapshots in the process of the first rank, and the channel to the servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from fieldcraft.cluster.packed_weights import drop_tied
from fieldcraft.engine.model_files import write_model
from fieldcraft.engine.vllm.worker.fieldcraft_wire import (
    CHANNEL_ERRORS,
    BroadcastChannel,
    TensorMeta,
    make_tensor_metas,
)


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
