"""Weights of a policy that the ranks of a cluster train."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any, final

import torch

from fieldcraft.engine.weights import (
    ProbeLogprobs,
    delete_when_collected,
    make_snapshot_folder,
)
from fieldcraft.extensions.cluster.ranks import RayTrainerGroup
from fieldcraft.extensions.cluster.sharding.trainer import ShardedTrainer
from fieldcraft.extensions.cluster.weights import PackedWeightSnapshot
from fieldcraft.extensions.vllm.worker.fieldcraft_wire import TensorMeta
from fieldcraft.train.parity import run_policy_probe
from fieldcraft.types import Tokenizer


@final
class ShardedWeights:
    """`WeightSource` of a sharded policy; an adapter is merged. The weights go from the first rank
    to engines, not through this process."""

    def __init__(self, ranks: RayTrainerGroup, trainer: ShardedTrainer, config: Any) -> None:
        self.ranks = ranks
        self._trainer = trainer
        self._config = config

    def pack_snapshot(self, dtype: torch.dtype, version: int) -> PackedWeightSnapshot:
        """Return a snapshot of the current weights, converted to a dtype."""
        probe = self._run_probe()
        tensors, nbytes = self.ranks.gather_weights(self._trainer.name, dtype)
        return PackedWeightSnapshot(version, tensors, nbytes, probe)

    def write(self, folder: Path) -> ProbeLogprobs:
        self.ranks.write_weights(self._trainer.name, folder)
        return self._run_probe()

    def store_weights(
        self, label: str, dtype: torch.dtype, retained_labels: Sequence[str]
    ) -> tuple[list[TensorMeta], ProbeLogprobs]:
        """Store the current weights in the first rank, and drop earlier ones except
        `retained_labels`."""
        return self.ranks.store_weights(
            self._trainer.name, label, dtype, retained_labels
        ), self._run_probe()

    def _run_probe(self) -> ProbeLogprobs:
        return run_policy_probe(self._trainer, self._config)


@final
class RemoteWeightSnapshot:
    """`WeightSnapshot` that remains in the first rank, which drops earlier ones except
    `retained_labels`. It is written to a folder in `parent` only if a server has to start with
    it."""

    def __init__(
        self,
        source: ShardedWeights,
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
        write = partial(self.source.ranks.call_sender, "write", self.label)
        folder, _ = make_snapshot_folder(write, self._tokenizer, self._parent)
        delete_when_collected(self, folder)
        return folder
