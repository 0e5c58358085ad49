"""The engine processes of a run, which all models that it samples from share."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import ceil
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from fieldcraft.cluster.cargo import Cargo, pack, size
from fieldcraft.cluster.fleet import Fleet
from fieldcraft.cluster.host import EngineHost, Shape
from fieldcraft.cluster.library import import_ray
from fieldcraft.cluster.ranks import RayRanks
from fieldcraft.cluster.seats import RaySeat
from fieldcraft.cluster.session import Session
from fieldcraft.config.sections import Dtype
from fieldcraft.engine.home import Home
from fieldcraft.engine.vllm.engine import TOLERANCE
from fieldcraft.engine.vllm.weights import Proof, merged_state, probe_ids, prove
from fieldcraft.train.batch import Sample
from fieldcraft.train.model import torch_type
from fieldcraft.train.sharding.trainer import ShardedTrainer
from fieldcraft.types import Tokenizer

Source = Callable[[torch.dtype, int], Awaitable[Cargo]]  # of a version, in a type
Count = Annotated[int, Field(gt=0)]
MOST_CALLS = 1_000_000  # that a process of Ray's takes at once; an engine has its own limit


class Engines:
    """One process for each engine of `cluster.engines`. Ray starts those that die again."""

    def __init__(self, session: Session, home: Home) -> None:
        self._device = session.device
        self._home = home
        self._actors = [
            session.actor(place, EngineHost, max_restarts=-1, max_concurrency=MOST_CALLS)
            for place in session.of("engine")
        ]
        self._fleets: weakref.WeakSet[Fleet] = weakref.WeakSet()
        self._models = 0

    def fleet(
        self,
        model: Any,
        tokenizer: Tokenizer,
        *,
        source: Source | None = None,
        max_rows: int,
        max_len: Count | None = None,
        step_tokens: Count = 8192,
        dtype: Dtype = "float32",
    ) -> Fleet:
        """All engines, to sample from a model of this process, or from what `source` has the
        weights of; then `model` needs none.

        Other arguments are those of a `LocalEngine`; `max_rows` is of all engines together, and
        `dtype` that of the model.
        """
        settings = {
            "max_rows": ceil(max_rows / len(self._actors)),
            "max_len": max_len,
            "step_tokens": step_tokens,
        }
        kind = torch_type(dtype)
        shape = Shape(
            model.config, model.generation_config, tokenizer, kind, self._device, settings
        )
        name = f"model {self._models}"
        self._models += 1
        seats = [RaySeat(actor, n, name, shape) for n, actor in enumerate(self._actors)]
        load = partial(source or partial(from_here, model), kind)
        fleet = Fleet(seats, load, TOLERANCE[dtype], self._home.say)
        self._fleets.add(fleet)
        weakref.finalize(fleet, _drop, self._actors, name).atexit = False
        return fleet

    async def close(self) -> None:
        """End all processes."""
        await asyncio.gather(*(fleet.close() for fleet in list(self._fleets)))
        for actor in self._actors:
            import_ray().kill(actor)


async def from_here(model: Any, dtype: torch.dtype, version: int) -> Cargo:
    """The weights of a model in this process."""
    tensors = pack(merged_state(model), dtype)
    return Cargo(version, import_ray().put(tensors), size(tensors), prove(model))


async def from_ranks(
    ranks: RayRanks, trainer: ShardedTrainer, config: Any, dtype: torch.dtype, version: int
) -> Cargo:
    """The weights of a policy in shards, with what its ranks say of the probe."""
    ids = np.array(probe_ids(config.get_text_config()), np.int64)
    weight = np.ones(len(ids), np.float32)
    weight[0] = 0.0
    zeros = np.zeros(len(ids), np.float32)
    text = Sample(ids, weight, zeros, zeros, zeros, zeros, zeros, zeros)
    trainer.fill_logprobs([(text,)], "old_logp", 1.0)
    tensors, count = ranks.whole(trainer.name, dtype)
    return Cargo(version, tensors, count, Proof(ids.tolist(), text.old_logp[1:], None))


def _drop(actors: Sequence[Any], name: str) -> None:
    """Nobody samples from a model any more."""
    if import_ray().is_initialized():
        for actor in actors:
            actor.drop.remote(name)
