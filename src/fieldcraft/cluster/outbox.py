"""Published weights in the process of the first rank, and the wire to servers that want them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from fieldcraft.cluster.cargo import once
from fieldcraft.engine.vllm.worker.fieldcraft_wire import FAILURES, Form, Wire, forms_of
from fieldcraft.engine.writing import write_model


@final
class Outbox:
    """Weights by label. They stay as they were published while training goes on.

    Args:
        host: the address of this machine at which servers meet it.
        device: from which tensors travel: by NCCL from a GPU, else by gloo.
    """

    def __init__(self, host: str, device: torch.device) -> None:
        self._host = host
        self._device = device
        self._kept: dict[str, tuple[Any, dict[str, Tensor]]] = {}
        self._wire: Wire | None = None

    def keep(
        self,
        label: str,
        model: Any,
        state: Mapping[str, Tensor],
        dtype: torch.dtype,
        others: Sequence[str],
    ) -> list[Form]:
        """Keep the state of a model in a type, and of what is kept only `others`. Returns the forms
        that receivers have to know."""
        self._kept = {name: kept for name, kept in self._kept.items() if name in others}
        tensors = {
            name: tensor.detach().to("cpu", dtype, copy=True).contiguous()
            for name, tensor in once(state).items()
        }
        self._kept[label] = model, tensors
        return forms_of(tensors)

    def open(self, size: int) -> tuple[str, int]:
        """Return the host and port at which `size - 1` receivers meet this process. It leaves the
        earlier ones."""
        if self._wire is not None:
            self._wire.close()
        self._wire = Wire(self._host, 0, 0, size, self._device)
        return self._host, self._wire.port

    def send(self, label: str) -> str:
        """Send weights to all receivers. Returns the reason if that failed, else an empty
        string."""
        assert self._wire is not None
        try:
            self._wire.send(self._kept[label][1])
        except FAILURES as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def write(self, label: str, folder: Path) -> None:
        """Write weights into a folder, as transformers loads them."""
        model, tensors = self._kept[label]
        write_model(folder, model, dict(tensors))
