"""Local engines of a run in Ray processes: their actors, clients, and the pool of all."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Annotated, Any

import torch
from pydantic import Field
from transformers import AutoModelForCausalLM

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.resources import RunResources
from fieldcraft.engine.weights import ProbeLogprobs, WeightSnapshot, run_probe
from fieldcraft.extensions.cluster.engine_group import EngineGroup
from fieldcraft.extensions.cluster.ranks import ShardedWeights
from fieldcraft.extensions.cluster.remote import ActorLostError, MonitoredActor, import_ray
from fieldcraft.extensions.cluster.session import ClusterSession
from fieldcraft.extensions.cluster.weights import (
    PackedTensor,
    load_weights,
    pack_model,
)
from fieldcraft.extensions.vllm.engine import PROBE_TOLERANCE_NATS
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.train.model import to_torch_dtype
from fieldcraft.types import Tokenizer

Count = Annotated[int, Field(gt=0)]
MAX_CONCURRENT_CALLS = 1_000_000  # concurrent calls of a Ray actor; an engine has its own limit


@dataclass(frozen=True)
class ModelSpec:
    """Settings with which an engine builds a model, without its weights. `settings` are arguments
    of a `LocalEngine`."""

    config: Any
    generation_config: Any
    tokenizer: Any
    dtype: torch.dtype
    device: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def build_model(spec: ModelSpec) -> Any:
    """Return an uninitialised model, whose weights are loaded later."""
    # A copy without the attributes set by training: its attention belongs to another process.
    config = type(spec.config).from_dict(spec.config.to_dict())
    model = AutoModelForCausalLM.from_config(config, dtype=spec.dtype, trust_remote_code=False)
    model.generation_config = spec.generation_config
    return model.to(spec.device).eval().requires_grad_(requires_grad=False)


class EngineActor:
    """Actor with local engines, one for each sampled model of a run.

    All methods run in one event loop, so that weights change between two steps of an engine.
    """

    def __init__(self) -> None:
        self._engines: dict[str, LocalEngine] = {}

    async def get_process_id(self) -> int:
        """Return the id of this process, once it is ready."""
        return os.getpid()

    async def load_snapshot(
        self, name: str, spec: ModelSpec, version: int, tensors: Mapping[str, PackedTensor]
    ) -> ProbeLogprobs:
        """Load weights of the model `name`, also for unfinished turns. Return the log-probabilities
        that the model then assigns to the probe."""
        if name not in self._engines:
            model = build_model(spec)
            self._engines[name] = LocalEngine(model, spec.tokenizer, **spec.settings)
        engine = self._engines[name]
        load_weights(engine.model, tensors)
        await engine.update_weights(version)
        return run_probe(engine.model)

    async def generate(
        self, name: str, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        """Continue `ids` as `LocalEngine.generate` does. Raises ActorLostError if the model was
        lost by a restart of the process."""
        if name not in self._engines:
            raise ActorLostError("it was restarted")
        return await self._engines[name].generate(ids, sampling, session)

    async def release(self, name: str, session: str) -> None:
        """Release a session as `LocalEngine.release` does."""
        if name in self._engines:
            self._engines[name].release(session)

    async def sleep(self, name: str) -> None:
        """Free the caches as `LocalEngine.sleep` does."""
        if name in self._engines:
            await self._engines[name].sleep()

    async def drop_model(self, name: str) -> None:
        """Drop a model that is no longer sampled from."""
        self._engines.pop(name, None)


class RayEngineClient:
    """Client of an engine in a Ray actor, for one model of the run."""

    def __init__(self, monitored: MonitoredActor, index: int, model: str, spec: ModelSpec) -> None:
        self.name = f"engine {index}"
        self._monitored = monitored
        self._actor = monitored.actor
        self._model = model
        self._spec = spec

    async def wait_until_ready(self) -> None:
        process_id: int = await self._monitored.await_result(
            self._actor.get_process_id.options(max_task_retries=-1).remote()
        )
        previous, self._monitored.process_id = self._monitored.process_id, process_id
        if previous not in (None, process_id):
            raise ActorLostError("while it was idle")

    async def load_snapshot(self, snapshot: WeightSnapshot) -> ProbeLogprobs:
        pending = self._actor.load_snapshot.remote(
            self._model, self._spec, snapshot.version, snapshot.handle
        )
        probe: ProbeLogprobs = await self._monitored.await_result(pending)
        return probe

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        pending = self._actor.generate.remote(self._model, list(ids), sampling, session)
        try:
            completion: Completion = await self._monitored.await_result(pending)
        except asyncio.CancelledError:
            self.release(session)
            raise
        return completion

    def release(self, session: str) -> None:
        self._actor.release.remote(self._model, session)

    async def sleep(self) -> None:
        await self._monitored.await_result(self._actor.sleep.remote(self._model))


class EnginePool:
    """Engines of a run: one process for each engine of `cluster.engines`. Ray restarts crashed
    processes."""

    def __init__(self, session: ClusterSession, resources: RunResources) -> None:
        self._device = session.device
        self.resources = resources
        self.actors = [
            MonitoredActor(
                session.start_actor(
                    placement, EngineActor, max_restarts=-1, max_concurrency=MAX_CONCURRENT_CALLS
                ),
                session.settings.heartbeat_timeout_seconds,
            )
            for placement in session.select_placements("engine")
        ]
        self._groups: dict[str, weakref.ref[EngineGroup]] = {}  # by model name
        self._num_models = 0

    def make_group(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        source: ShardedWeights | None = None,
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
            for index, monitored in enumerate(self.actors)
        ]
        pack_snapshot = partial(pack_model, model) if source is None else source.pack_snapshot
        # Sessions continue while the weights are packed.
        take_snapshot = partial(asyncio.to_thread, partial(pack_snapshot, torch_dtype))
        group = EngineGroup(clients, take_snapshot, PROBE_TOLERANCE_NATS[dtype], self.resources.log)
        self._groups[name] = weakref.ref(group)
        return group

    async def close(self) -> None:
        """Stop all processes."""
        live_groups = [
            group for reference in self._groups.values() if (group := reference()) is not None
        ]
        await asyncio.gather(*(group.close() for group in live_groups))
        for monitored in self.actors:
            import_ray().kill(monitored.actor)

    def _drop_unused(self) -> None:
        """Drop models that are no longer sampled from.

        This is not done in a finalizer, because Python may run it anywhere, even during a call of
        Ray.
        """
        for name in [name for name, reference in self._groups.items() if reference() is None]:
            del self._groups[name]
            for monitored in self.actors:
                monitored.actor.drop_model.remote(name)
