"""The engine processes of a run, which all models that it samples from share."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from fieldcraft.cluster.cargo import Cargo, pack, size
from fieldcraft.cluster.fleet import Fleet
from fieldcraft.cluster.host import EngineHost, shape_of
from fieldcraft.cluster.library import import_ray
from fieldcraft.cluster.seats import RaySeat
from fieldcraft.cluster.session import Session
from fieldcraft.config.sections import Dtype
from fieldcraft.engine.home import Home
from fieldcraft.engine.vllm.engine import TOLERANCE
from fieldcraft.engine.vllm.weights import merged_state, prove
from fieldcraft.types import Tokenizer

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
        max_rows: int,
        max_len: Count | None = None,
        step_tokens: Count = 8192,
        dtype: Dtype = "float32",
    ) -> Fleet:
        """All engines, to sample from a model of this process. Arguments are those of a
        `LocalEngine`; `max_rows` is of all engines together, and `dtype` that of the model."""

        async def load(version: int) -> Cargo:
            tensors = pack(merged_state(model))
            return Cargo(version, import_ray().put(tensors), size(tensors), prove(model))

        count = len(self._actors)
        settings = {
            "max_len": max_len,
            "step_tokens": step_tokens,
            "max_rows": -(-max_rows // count),
        }
        shape = shape_of(model, tokenizer, self._device, settings)
        return self._over(load, shape, TOLERANCE[dtype])

    def _over(self, load: Callable[[int], Awaitable[Cargo]], shape: Any, tolerance: float) -> Fleet:
        name = f"model {self._models}"
        self._models += 1
        seats = [RaySeat(actor, n, name, shape) for n, actor in enumerate(self._actors)]
        fleet = Fleet(seats, load, tolerance, self._home.say)
        self._fleets.add(fleet)
        weakref.finalize(fleet, _drop, self._actors, name).atexit = False
        return fleet

    async def close(self) -> None:
        """End all processes."""
        await asyncio.gather(*(fleet.close() for fleet in list(self._fleets)))
        for actor in self._actors:
            import_ray().kill(actor)


def _drop(actors: Sequence[Any], name: str) -> None:
    """Nobody samples from a model any more."""
    if import_ray().is_initialized():
        for actor in actors:
            actor.drop.remote(name)
