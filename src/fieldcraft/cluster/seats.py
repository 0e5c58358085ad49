"""The engines of a fleet: the protocol that it needs of one, and one that is a process of Ray's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from fieldcraft.cluster.cargo import Cargo
from fieldcraft.cluster.health import end_if_silent, silence
from fieldcraft.cluster.host import Shape
from fieldcraft.cluster.remote import Lost, answer
from fieldcraft.engine.vllm.weights import Proof
from fieldcraft.sampling import Sampling
from fieldcraft.types import Completion


class Seat(Protocol):
    """An engine somewhere else, for one model. Everything may raise Lost."""

    @property
    def name(self) -> str:
        """Name by which the reader of a run knows the engine."""

    async def ready(self) -> None:
        """Return when the engine can be asked; start one that has died again. Raises Lost for a
        death that no call has noticed."""

    async def hold(self, cargo: Cargo) -> Proof:
        """Sample from these weights, and return what they say of the probe."""

    async def generate(self, ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """Continue ids as an `Engine` does."""

    def release(self, session: str) -> None:
        """Forget a session as an `Engine` does."""

    async def sleep(self) -> None:
        """Free the caches as a `PolicyEngine` does."""


@dataclass
class Kept:
    """An `EngineHost` that Ray keeps, and its process as it was last seen. None: it was never seen,
    or has died since."""

    actor: Any
    silence: float  # seconds without an answer after which it is ended
    process: int | None = None
    _asked: int = 0
    _listening: asyncio.Task[None] | None = None
    _ended: bool = False  # for its silence

    async def answer(self, asked: Awaitable[Any]) -> Any:
        """Return what the process returns or raises. Raises Lost if it dies or hangs."""
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen())
        self._asked += 1
        try:
            found = await answer(asked)
        except Lost:
            self.process = None
            if self._ended:
                raise Lost(silence(self.silence)) from None
            raise
        finally:
            self._asked -= 1
            if not self._asked:
                self._listening.cancel()
        self._ended = False
        return found

    async def _listen(self) -> None:
        with suppress(Lost):
            await end_if_silent(self.actor, self.silence)
            self._ended = True


class RaySeat:
    """An engine, seen from one model of the run."""

    def __init__(self, kept: Kept, number: int, model: str, shape: Shape) -> None:
        self.name = f"engine {number}"
        self._kept = kept
        self._actor = kept.actor
        self._model = model
        self._shape = shape

    async def ready(self) -> None:
        found: int = await self._kept.answer(
            self._actor.process.options(max_task_retries=-1).remote()
        )
        before, self._kept.process = self._kept.process, found
        if before not in (None, found):
            raise Lost("while nobody asked it")

    async def hold(self, cargo: Cargo) -> Proof:
        asked = self._actor.hold.remote(self._model, self._shape, cargo.version, cargo.tensors)
        found: Proof = await self._kept.answer(asked)
        return found

    async def generate(self, ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        asked = self._actor.generate.remote(self._model, list(ids), sampling, session)
        try:
            found: Completion = await self._kept.answer(asked)
        except asyncio.CancelledError:
            self.release(session)
            raise
        return found

    def release(self, session: str) -> None:
        self._actor.release.remote(self._model, session)

    async def sleep(self) -> None:
        await self._kept.answer(self._actor.sleep.remote(self._model))
