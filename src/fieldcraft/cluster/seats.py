"""The engines of a fleet: what the fleet needs of one, and one that is a process of Ray's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from fieldcraft.cluster.cargo import Cargo
from fieldcraft.cluster.host import Shape, Unknown
from fieldcraft.cluster.library import import_ray
from fieldcraft.engine.vllm.weights import Proof
from fieldcraft.types import Completion, Sampling, UserError


class Lost(Exception):
    """The process behind a handle has died, and with it what it was asked for."""


class Seat(Protocol):
    """An engine somewhere else, for one model. Everything may raise Lost."""

    @property
    def name(self) -> str:
        """As the reader of a run knows it."""

    async def ready(self) -> None:
        """Return when the engine can be asked; one that has died is started again."""

    async def hold(self, cargo: Cargo) -> Proof:
        """Sample from these weights, and say what they say of the probe."""

    async def generate(self, ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """As an `Engine` does."""

    def release(self, session: str) -> None:
        """As an `Engine` does."""

    async def sleep(self) -> None:
        """As a `PolicyEngine` does."""


class RaySeat:
    """An `EngineHost` that Ray keeps, seen from one model of the run."""

    def __init__(self, actor: Any, number: int, model: str, shape: Shape) -> None:
        self.name = f"engine {number}"
        self._actor = actor
        self._model = model
        self._shape = shape

    async def ready(self) -> None:
        await answer(self._actor.process.options(max_task_retries=-1).remote())

    async def hold(self, cargo: Cargo) -> Proof:
        asked = self._actor.hold.remote(self._model, self._shape, cargo.version, cargo.tensors)
        found: Proof = await answer(asked)
        return found

    async def generate(self, ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        asked = self._actor.generate.remote(self._model, list(ids), sampling, session)
        try:
            found: Completion = await answer(asked)
        except asyncio.CancelledError:
            self.release(session)
            raise
        return found

    def release(self, session: str) -> None:
        self._actor.release.remote(self._model, session)

    async def sleep(self) -> None:
        await answer(self._actor.sleep.remote(self._model))


async def answer(asked: Awaitable[Any]) -> Any:
    """What a process of Ray's returns or raises. Raises Lost if it has died."""
    ray = import_ray()
    try:
        return await asked
    except ray.exceptions.RayActorError as error:
        raise Lost(type(error).__name__) from error
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, Unknown):
            raise Lost("it was started anew") from error
        if isinstance(cause, UserError | FloatingPointError):
            raise cause from None
        raise
