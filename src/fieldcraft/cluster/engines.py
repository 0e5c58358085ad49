"""The engine processes of a run, which all models that it samples from share."""

from __future__ import annotations

import asyncio
import weakref
from functools import partial
from math import ceil
from typing import Annotated, Any

from pydantic import Field

from fieldcraft.cluster.fleet import Fleet
from fieldcraft.cluster.host import EngineHost, Shape
from fieldcraft.cluster.remote import import_ray
from fieldcraft.cluster.seats import Kept, RaySeat
from fieldcraft.cluster.session import Session
from fieldcraft.cluster.sources import Here, Source
from fieldcraft.config.sections import Dtype
from fieldcraft.engine.home import Home
from fieldcraft.engine.vllm.engine import TOLERANCE
from fieldcraft.train.model import torch_type
from fieldcraft.types import Tokenizer

Count = Annotated[int, Field(gt=0)]
MOST_CALLS = 1_000_000  # that a process of Ray's takes at once; an engine has its own limit


class Engines:
    """The engines of a run: one process for each engine of `cluster.engines`. Ray starts those that
    die again."""

    def __init__(self, session: Session, home: Home) -> None:
        self._device = session.device
        self.home = home
        self.actors = [
            session.actor(place, EngineHost, max_restarts=-1, max_concurrency=MOST_CALLS)
            for place in session.of("engine")
        ]
        self._kept = [Kept(actor, session.settings.silence) for actor in self.actors]
        self._fleets: dict[str, weakref.ref[Fleet]] = {}  # by the names of their models
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
        """Return all engines as a fleet, to sample from a model of this process, or from what
        `source` has the weights of; then `model` needs none.

        Other arguments are those of a `LocalEngine`; `max_rows` is of all engines together, and
        `dtype` that of the model.
        """
        settings = {
            "max_rows": ceil(max_rows / len(self.actors)),
            "max_len": max_len,
            "step_tokens": step_tokens,
        }
        kind = torch_type(dtype)
        shape = Shape(
            model.config, model.generation_config, tokenizer, kind, self._device, settings
        )
        self._drop_unused()
        name = f"model {self._models}"
        self._models += 1
        seats = [RaySeat(kept, n, name, shape) for n, kept in enumerate(self._kept)]
        cargo = partial((source or Here(model)).cargo, kind)
        load = partial(asyncio.to_thread, cargo)  # sessions continue meanwhile
        fleet = Fleet(seats, load, TOLERANCE[dtype], self.home.say)
        self._fleets[name] = weakref.ref(fleet)
        return fleet

    async def close(self) -> None:
        """End all processes."""
        living = [fleet for one in self._fleets.values() if (fleet := one()) is not None]
        await asyncio.gather(*(fleet.close() for fleet in living))
        for actor in self.actors:
            import_ray().kill(actor)

    def _drop_unused(self) -> None:
        """Forget models that nobody samples from any more. This does not happen as soon as it is
        so: Python may find that out anywhere, in the middle of a call of Ray's too."""
        for name in [name for name, fleet in self._fleets.items() if fleet() is None]:
            del self._fleets[name]
            for actor in self.actors:
                actor.drop.remote(name)
