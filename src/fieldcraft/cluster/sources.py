"""Sources of a policy's weights: this process, or the ranks that train it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, final

import torch

from fieldcraft.cluster.packed_weights import PackedWeightSnapshot, count_bytes, pack_tensors
from fieldcraft.cluster.ranks import RayTrainerGroup
from fieldcraft.cluster.remote import import_ray
from fieldcraft.cluster.remote_weights import RemoteWeightSource
from fieldcraft.engine.vllm.weights import ProbeLogprobs, merge_lora_weights, run_probe
from fieldcraft.engine.vllm.worker.fieldcraft_wire import TensorMeta
from fieldcraft.train.parity import run_policy_probe
from fieldcraft.train.sharding.trainer import ShardedTrainer


class PackedWeightSource(Protocol):
    """Source of the weights of a policy in training; an adapter is merged."""

    def pack_snapshot(self, dtype: torch.dtype, version: int) -> PackedWeightSnapshot:
        """Return a snapshot of the current weights of the policy, converted to a dtype."""


@final
class PackedModelWeights:
    """Weights of a model in this process."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def pack_snapshot(self, dtype: torch.dtype, version: int) -> PackedWeightSnapshot:
        tensors = pack_tensors(merge_lora_weights(self._model), dtype)
        return PackedWeightSnapshot(
            version, import_ray().put(tensors), count_bytes(tensors), run_probe(self._model)
        )


@final
class ShardedWeights(RemoteWeightSource):
    """Weights of a sharded policy. They go from the first rank to engines, not through this
    process."""

    def __init__(self, ranks: RayTrainerGroup, trainer: ShardedTrainer, config: Any) -> None:
        self._ranks = ranks
        self._trainer = trainer
        self._config = config

    def pack_snapshot(self, dtype: torch.dtype, version: int) -> PackedWeightSnapshot:
        probe = self._run_probe()
        tensors, nbytes = self._ranks.gather_weights(self._trainer.name, dtype)
        return PackedWeightSnapshot(version, tensors, nbytes, probe)

    def write(self, folder: Path) -> ProbeLogprobs:
        self._ranks.write_weights(self._trainer.name, folder)
        return self._run_probe()

    @property
    def process_handle(self) -> Any:
        return self._ranks.first_actor

    def store_weights(
        self, label: str, dtype: torch.dtype, retained_labels: Sequence[str]
    ) -> tuple[list[TensorMeta], ProbeLogprobs]:
        return self._ranks.store_weights(
            self._trainer.name, label, dtype, retained_labels
        ), self._run_probe()

    def open_channel(self, world_size: int) -> tuple[str, int]:
        return self._ranks.open_channel(world_size)

    def send_weights(self, label: str) -> str:
        return self._ranks.send_weights(label)

    def write_stored(self, label: str, folder: Path) -> None:
        self._ranks.write_stored(label, folder)

    def _run_probe(self) -> ProbeLogprobs:
        return run_policy_probe(self._trainer, self._config)
