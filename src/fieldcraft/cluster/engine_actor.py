"""Ray actor of the process of an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from fieldcraft.cluster.packed_weights import PackedTensor, load_weights
from fieldcraft.cluster.remote import ActorLostError
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.vllm.weights import ProbeLogprobs, run_probe
from fieldcraft.sampling import Completion, SamplingParams


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
