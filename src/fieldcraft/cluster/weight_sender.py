"""Weight snapshots in the process of the first rank, and the channel to servers that need them."""

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
    """Weights by label. They stay as they were published while training goes on.

    Args:
        host: the address of this machine at which servers meet it.
        device: from which tensors travel: by NCCL from a GPU, else by gloo.
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
        """Keep the state of a model in a type, and of what is kept only `retained_labels`. Returns
        the metas of the tensors, which receivers have to know."""
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
        """Return the host and port at which `world_size - 1` receivers meet this process. It leaves
        the earlier ones."""
        if self._channel is not None:
            self._channel.close()
        self._channel = BroadcastChannel(self._host, 0, 0, world_size, self._device)
        return self._host, self._channel.port

    def send(self, label: str) -> str:
        """Send weights to all receivers. Returns the reason if that failed, else an empty
        string."""
        assert self._channel is not None
        try:
            self._channel.send(self._stored[label][1])
        except CHANNEL_ERRORS as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def write(self, label: str, folder: Path) -> None:
        """Write weights into a folder, as transformers loads them."""
        model, tensors = self._stored[label]
        write_model(folder, model, dict(tensors))
