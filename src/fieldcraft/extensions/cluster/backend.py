"""Cluster of a run: inputs of its stages with trainers in Ray processes, and placed engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from fieldcraft.config.choices import EngineConfig
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import ClusterConfig, Optim
from fieldcraft.engine.base import PolicyEngine
from fieldcraft.engine.resources import RunResources
from fieldcraft.extensions.cluster.engine_pool import EnginePool
from fieldcraft.extensions.cluster.ranks import RayTrainerGroup, ShardedWeights
from fieldcraft.extensions.cluster.session import ClusterSession, open_cluster
from fieldcraft.extensions.cluster.sharding.checkpoint import load_sharded_policy
from fieldcraft.extensions.cluster.sharding.specs import CriticSpec, PolicySpec, ReferenceSpec
from fieldcraft.extensions.cluster.sharding.trainer import (
    ShardedCritic,
    ShardedTrainer,
    make_reference,
)
from fieldcraft.extensions.cluster.vllm_servers import make_server_pool
from fieldcraft.runs.stage_inputs import LocalStageInputs
from fieldcraft.train.model import make_empty_model, require_tokenizer
from fieldcraft.train.protocols import ReferenceModel, TrainablePolicy, ValueModel

__all__ = ["RayBackend", "ShardedStageInputs", "load_sharded_policy", "open_backend"]


@dataclass(frozen=True)
class RayBackend:
    """Cluster of a run (`runs.cluster.ClusterBackend`) in a Ray session."""

    session: ClusterSession

    @property
    def summary(self) -> str:
        return self.session.summary

    def find_stage_inputs(self) -> type[LocalStageInputs] | None:
        return ShardedStageInputs if self.session.select_placements("trainer") else None

    def place_engine(
        self, config: EngineConfig, factory: Callable[..., Any], resources: RunResources
    ) -> tuple[Callable[..., Any], Mapping[str, Any]]:
        if not self.session.select_placements("engine"):
            return factory, {}
        offered = {
            "threads": 1 if self.session.device == "cpu" else None,
            "pool_factory": partial(make_server_pool, self.session),
        }
        if config.features.cluster == "processes":
            pool = resources.get_or_create("engines", partial(EnginePool, self.session, resources))
            return pool.make_group, offered
        return factory, offered


@contextmanager
def open_backend(config: ClusterConfig, device: str, folder: Path) -> Iterator[RayBackend]:
    """Yield the cluster of a run. Raises UserError like `open_cluster`."""
    with open_cluster(config, device, folder) as session:
        yield RayBackend(session)


@dataclass
class ShardedStageInputs(LocalStageInputs):
    """Stage inputs with all trained models, and read-only ones next to them, on ranks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        cluster = self.context.cluster
        assert isinstance(cluster, RayBackend)
        self.trainers = self.context.resources.get_or_create(
            "ranks", partial(RayTrainerGroup, cluster.session)
        )  # a run has one group of ranks at a time
        self.trainers.start()

    def make_trainer(self, optim: Optim, steps: int) -> TrainablePolicy:
        folder, last_adapter = self._base_and_adapter
        return ShardedTrainer(
            self.trainers,
            PolicySpec(
                folder=folder.absolute(),
                optim=optim,
                steps=steps,
                dtype=self.recipe.dtype,
                lora=self.recipe.lora,
                seed=self.seed,
                adapter=last_adapter and last_adapter.absolute(),
            ),
        )

    def make_reference(self, stage: str | None, optim: Optim) -> ReferenceModel:
        folder = self.start_model if stage is None else self.context.folder.model(stage)
        return self._make_reference(folder, optim)

    def load_external_model(self, folder: Path, optim: Optim) -> ReferenceModel:
        require_tokenizer(folder, self.dialect.tokenizer)
        return self._make_reference(folder, optim)

    def make_critic(self, settings: Rl, trainer: TrainablePolicy) -> ValueModel:
        assert isinstance(trainer, ShardedTrainer)
        return ShardedCritic(
            self.trainers,
            CriticSpec(
                settings=settings.critic,
                optim=settings.optim,
                steps=settings.steps,
                policy=trainer.name,
                folder=self.start_model.absolute(),
                dtype=self.recipe.dtype,
            ),
        )

    def make_engine(self, trainer: TrainablePolicy) -> PolicyEngine:
        assert isinstance(trainer, ShardedTrainer)
        model = make_empty_model(self.start_model)
        if (self.start_model / GENERATION_CONFIG_NAME).exists():  # has the end tokens
            model.generation_config = GenerationConfig.from_pretrained(self.start_model)
        weight_source = ShardedWeights(self.trainers, trainer, model.config)
        return self.context.make_engine(model, self.dialect, weight_source)

    def _make_reference(self, folder: Path, optim: Optim) -> ReferenceModel:
        """Make a read-only model. Its name on the ranks is its folder, so that a stage can have
        several."""
        spec = ReferenceSpec(folder=folder.absolute(), optim=optim, dtype=self.recipe.dtype)
        return make_reference(self.trainers, str(spec.folder), spec)
