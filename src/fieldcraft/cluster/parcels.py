"""Published weights that stay where they are trained until servers want them."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any, final

import torch

from fieldcraft.engine.vllm.weights import Proof, delete_with, folder_of
from fieldcraft.engine.vllm.worker.fieldcraft_wire import Form
from fieldcraft.types import Tokenizer


class Keeper(ABC):
    """A policy in training, in another process that keeps what was published of it; an `Origin`."""

    @property
    @abstractmethod
    def process(self) -> Any:
        """Handle of the process, which may be started again."""

    @abstractmethod
    def write(self, folder: Path) -> Proof:
        """Write the policy as `Origin.write` does."""

    @abstractmethod
    def keep(
        self, label: str, dtype: torch.dtype, others: Sequence[str]
    ) -> tuple[list[Form], Proof]:
        """Keep the weights as they are now, and of earlier ones only `others`."""

    @abstractmethod
    def open(self, size: int) -> tuple[str, int]:
        """Open a meeting point as `Outbox.open` does."""

    @abstractmethod
    def send(self, label: str) -> str:
        """Send weights as `Outbox.send` does."""

    @abstractmethod
    def write_kept(self, label: str, folder: Path) -> None:
        """Write kept weights as `Outbox.write` does."""


@final
class Parcel:
    """`Weights` that stay with a keeper, which of earlier ones keeps only `others`. They are
    written into a folder in `place` only if a server has to be started with them."""

    def __init__(
        self,
        keeper: Keeper,
        tokenizer: Tokenizer,
        version: int,
        place: Path,
        dtype: torch.dtype,
        others: Sequence[str],
    ) -> None:
        self.label = uuid.uuid4().hex
        self.version = version
        self.keeper = keeper
        self._tokenizer = tokenizer
        self._place = place
        self.forms, self.proof = keeper.keep(self.label, dtype, others)
        self.bytes = sum(prod(shape) for _, _, shape in self.forms) * dtype.itemsize

    @cached_property
    def folder(self) -> Path:
        """Folder with the weights, which are written when it is first asked for. Raises UserError
        if it cannot be written."""
        write = partial(self.keeper.write_kept, self.label)
        folder, _ = folder_of(write, self._tokenizer, self._place)
        delete_with(self, folder)
        return folder
