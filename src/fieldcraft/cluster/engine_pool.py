"""Engine processes of a run, shared by all models that it samples from."""

from __future__ import annotations

import asyncio
import weakref
from functools import partial
from math import ceil
from typing import Annotated, Any

from pydantic import Field

from fieldcraft.cluster.engine_actor import EngineActor, ModelSpec
from fieldcraft.cluster.engine_clients import MonitoredActor, RayEngineClient
from fieldcraft.cluster.engine_group import EngineGroup
from fieldcraft.cluster.remote import import_ray
from fieldcraft.cluster.session import ClusterSession
from fieldcraft.cluster.sources import PackedModelWeights, PackedWeightSource
from fieldcraft.config.sections import Dtype
from fieldcraft.engine.resources import RunResources
from fieldcraft.engine.vllm.engine import PROBE_TOLERANCE_NATS
from fieldcraft.train.model import to_torch_dtype
from fieldcraft.types import Tokenizer

Count = Annotated[int, Field(gt=0)]
MAX_CONCURRENT_CALLS = 1_000_000  # concurrent calls of a Ray actor; an engine has its own limit


class EnginePool:
    """Engines of a run: one process for each engine of `cluster.engines`. Ray restarts crashed
    processes."""

    def __init__(self, session: ClusterSession, resources: RunResources) -> None:
        self._device = session.device
        self.resources = resources
        self.actors = [
            session.start_actor(
                placement, EngineActor, max_restarts=-1, max_concurrency=MAX_CONCURRENT_CALLS
            )
            for placement in session.select_placements("engine")
        ]
        self._monitored_actors = [
            MonitoredActor(actor, session.settings.heartbeat_timeout_seconds)
            for actor in self.actors
        ]
        self._groups: dict[str, weakref.ref[EngineGroup]] = {}  # by model name
        self._num_models = 0

    def make_group(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        source: PackedWeightSource | None = None,
        max_num_seqs: int,
        max_model_len: Count | None = None,
        max_batched_tokens: Count = 8192,
        dtype: Dtype = "float32",
    ) -> EngineGroup:
        """Return all engines as a group, to sample from a model of this process, or from the
        weights of `source`; then `model` needs no weights.

        Other arguments are those of a `LocalEngine`. `max_num_seqs` is the total of all engines,
        and `dtype` is the type of the model.
        """
        settings = {
            "max_num_seqs": ceil(max_num_seqs / len(self.actors)),
            "max_model_len": max_model_len,
            "max_batched_tokens": max_batched_tokens,
        }
        torch_dtype = to_torch_dtype(dtype)
        spec = ModelSpec(
            model.config, model.generation_config, tokenizer, torch_dtype, self._device, settings
        )
        self._drop_unused()
        name = f"model {self._num_models}"
        self._num_models += 1
        clients = [
            RayEngineClient(monitored, index, name, spec)
            for index, monitored in enumerate(self._monitored_actors)
        ]
        pack_snapshot = partial((source or PackedModelWeights(model)).pack_snapshot, torch_dtype)
        take_snapshot = partial(asyncio.to_thread, pack_snapshot)  # sessions continue during it
        group = EngineGroup(clients, take_snapshot, PROBE_TOLERANCE_NATS[dtype], self.resources.log)
        self._groups[name] = weakref.ref(group)
        return group

    async def close(self) -> None:
        """Stop all processes."""
        live_groups = [
            group for reference in self._groups.values() if (group := reference()) is not None
        ]
        await asyncio.gather(*(group.close() for group in live_groups))
        for actor in self.actors:
            import_ray().kill(actor)

    def _drop_unused(self) -> None:
        """Drop models that are no longer sampled from.

        This is not done in a finalizer, because Python may run it anywhere, even during a call of
        Ray.
        """
        for name in [name for name, reference in self._groups.items() if reference() is None]:
            del self._groups[name]
            for actor in self.actors:
                actor.drop_model.remote(name)
