"""The sources of a policy's weights: this process, or the ranks that train it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, final

import torch

from fieldcraft.cluster.cargo import Cargo, pack, size
from fieldcraft.cluster.parcels import Keeper
from fieldcraft.cluster.ranks import RayRanks
from fieldcraft.cluster.remote import import_ray
from fieldcraft.engine.vllm.weights import Proof, merged_state, prove
from fieldcraft.engine.vllm.worker.fieldcraft_wire import Form
from fieldcraft.train.parity import prove_policy
from fieldcraft.train.sharding.trainer import ShardedTrainer


class Source(Protocol):
    """A policy in training; an adapter is merged."""

    def cargo(self, dtype: torch.dtype, version: int) -> Cargo:
        """Return the weights of the policy as they are now, in a type, on their way to engines."""


@final
class Here:
    """A model of this process."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def cargo(self, dtype: torch.dtype, version: int) -> Cargo:
        tensors = pack(merged_state(self._model), dtype)
        return Cargo(version, import_ray().put(tensors), size(tensors), prove(self._model))


@final
class OnRanks(Keeper):
    """A policy in shards. Its weights go from the first rank to engines without passing here."""

    def __init__(self, ranks: RayRanks, trainer: ShardedTrainer, config: Any) -> None:
        self._ranks = ranks
        self._trainer = trainer
        self._config = config

    def cargo(self, dtype: torch.dtype, version: int) -> Cargo:
        proof = self._prove()
        tensors, count = self._ranks.whole(self._trainer.name, dtype)
        return Cargo(version, tensors, count, proof)

    def write(self, folder: Path) -> Proof:
        self._ranks.write(self._trainer.name, folder)
        return self._prove()

    @property
    def process(self) -> Any:
        return self._ranks.first

    def keep(
        self, label: str, dtype: torch.dtype, others: Sequence[str]
    ) -> tuple[list[Form], Proof]:
        return self._ranks.keep(self._trainer.name, label, dtype, others), self._prove()

    def open(self, size: int) -> tuple[str, int]:
        return self._ranks.open(size)

    def send(self, label: str) -> str:
        return self._ranks.send(label)

    def write_kept(self, label: str, folder: Path) -> None:
        self._ranks.write_kept(label, folder)

    def _prove(self) -> Proof:
        return prove_policy(self._trainer, self._config)
