"""Clients of the engines of a group: their protocol, and a client of an engine in a Ray actor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from fieldcraft.cluster.engine_actor import ModelSpec
from fieldcraft.cluster.health import describe_heartbeat_timeout, kill_if_unresponsive
from fieldcraft.cluster.packed_weights import PackedWeightSnapshot
from fieldcraft.cluster.remote import ActorLostError, await_result
from fieldcraft.engine.vllm.weights import ProbeLogprobs
from fieldcraft.sampling import Completion, SamplingParams


class EngineClient(Protocol):
    """Client of a remote engine, for one model. All methods may raise ActorLostError."""

    @property
    def name(self) -> str:
        """Name of the engine in messages."""

    async def wait_until_ready(self) -> None:
        """Wait until the engine accepts requests; restart it if it has crashed. Raises
        ActorLostError for a crash that no call has noticed."""

    async def load_snapshot(self, snapshot: PackedWeightSnapshot) -> ProbeLogprobs:
        """Load these weights, and return the log-probabilities that they assign to the probe."""

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        """Continue ids as an `Engine` does."""

    def release(self, session: str) -> None:
        """Release a session as an `Engine` does."""

    async def sleep(self) -> None:
        """Free the caches as a `PolicyEngine` does."""


@dataclass
class MonitoredActor:
    """`EngineActor` managed by Ray, with a heartbeat. Its process is None before the first contact,
    and after a crash."""

    actor: Any
    heartbeat_timeout_seconds: float  # seconds without a response after which it is killed
    process_id: int | None = None
    _pending_calls: int = 0
    _heartbeat_task: asyncio.Task[None] | None = None
    _was_killed: bool = False  # because it did not respond

    async def await_result(self, pending: Awaitable[Any]) -> Any:
        """Return the result of a call, or raise its exception. Raises ActorLostError if the process
        crashes or hangs."""
        if self._heartbeat_task is None or self._heartbeat_task.done():
            self._heartbeat_task = asyncio.create_task(self._monitor_heartbeat())
        self._pending_calls += 1
        try:
            result = await await_result(pending)
        except ActorLostError:
            self.process_id = None
            if self._was_killed:
                raise ActorLostError(
                    describe_heartbeat_timeout(self.heartbeat_timeout_seconds)
                ) from None
            raise
        finally:
            self._pending_calls -= 1
            if not self._pending_calls:
                self._heartbeat_task.cancel()
        self._was_killed = False
        return result

    async def _monitor_heartbeat(self) -> None:
        with suppress(ActorLostError):
            await kill_if_unresponsive(self.actor, self.heartbeat_timeout_seconds)
            self._was_killed = True


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

    async def load_snapshot(self, snapshot: PackedWeightSnapshot) -> ProbeLogprobs:
        pending = self._actor.load_snapshot.remote(
            self._model, self._spec, snapshot.version, snapshot.tensors
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
