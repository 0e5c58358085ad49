"""Weight snapshots that remain in the training process until servers need them."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any, final

import torch

from fieldcraft.engine.vllm.weights import (
    ProbeLogprobs,
    delete_when_collected,
    make_snapshot_folder,
)
from fieldcraft.engine.vllm.worker.fieldcraft_wire import TensorMeta
from fieldcraft.types import Tokenizer


class RemoteWeightSource(ABC):
    """`WeightSource` of a policy that is trained in another process, which stores the published
    weights."""

    @property
    @abstractmethod
    def process_handle(self) -> Any:
        """Handle of the process, which may be restarted."""

    @abstractmethod
    def write(self, folder: Path) -> ProbeLogprobs:
        """Write the policy as `WeightSource.write` does."""

    @abstractmethod
    def store_weights(
        self, label: str, dtype: torch.dtype, retained_labels: Sequence[str]
    ) -> tuple[list[TensorMeta], ProbeLogprobs]:
        """Store the current weights, and drop earlier ones except `retained_labels`."""

    @abstractmethod
    def open_channel(self, world_size: int) -> tuple[str, int]:
        """Open a rendezvous as `WeightSender.open_channel` does."""

    @abstractmethod
    def send_weights(self, label: str) -> str:
        """Send weights as `WeightSender.send` does."""

    @abstractmethod
    def write_stored(self, label: str, folder: Path) -> None:
        """Write stored weights as `WeightSender.write` does."""


@final
class RemoteWeightSnapshot:
    """`WeightSnapshot` that remains in a `RemoteWeightSource`, which drops earlier ones except
    `retained_labels`. It is written to a folder in `parent` only if a server has to start with
    it."""

    def __init__(
        self,
        source: RemoteWeightSource,
        tokenizer: Tokenizer,
        version: int,
        parent: Path,
        dtype: torch.dtype,
        retained_labels: Sequence[str],
    ) -> None:
        self.label = uuid.uuid4().hex
        self.version = version
        self.source = source
        self._tokenizer = tokenizer
        self._parent = parent
        self.tensor_metas, self.probe = source.store_weights(self.label, dtype, retained_labels)
        self.nbytes = sum(prod(shape) for _, _, shape in self.tensor_metas) * dtype.itemsize

    @cached_property
    def folder(self) -> Path:
        """Return the folder with the weights, which are written on first access. Raises UserError
        if it cannot be written."""
        write = partial(self.source.write_stored, self.label)
        folder, _ = make_snapshot_folder(write, self._tokenizer, self._parent)
        delete_when_collected(self, folder)
        return folder
