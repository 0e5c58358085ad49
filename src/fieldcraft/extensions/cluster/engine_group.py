"""Group of engines used as one: it routes sessions, and retries the requests of lost engines."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from fieldcraft.engine.weights import ProbeLogprobs, WeightSnapshot
from fieldcraft.extensions.cluster.remote import ActorLostError
from fieldcraft.extensions.cluster.session_router import SessionRouter
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.types import UserError

MAX_CONSECUTIVE_FAILURES = 3  # consecutive failures of an engine without a completed request


class EngineClient(Protocol):
    """Client of a remote engine, for one model. All methods may raise ActorLostError."""

    @property
    def name(self) -> str:
        """Name of the engine in messages."""

    async def wait_until_ready(self) -> None:
        """Wait until the engine accepts requests; restart it if it has crashed. Raises
        ActorLostError for a crash that no call has noticed."""

    async def load_snapshot(self, snapshot: WeightSnapshot) -> ProbeLogprobs:
        """Load these weights, and return the log-probabilities that they assign to the probe."""

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        """Continue ids as an `Engine` does."""

    def release(self, session: str) -> None:
        """Release a session as an `Engine` does."""

    async def sleep(self) -> None:
        """Free the caches as a `PolicyEngine` does."""


@dataclass(eq=False)
class _EngineState:
    """State of an engine: its weights, its crashes, and the task that sends it newer weights."""

    client: EngineClient
    snapshot: WeightSnapshot | None = None  # None: it does not accept requests
    crashes: int = 0
    consecutive_failures: int = 0
    update_task: asyncio.Task[None] | None = None  # the last one

    @property
    def is_lost(self) -> bool:
        """State of an engine that has crashed and has not been restarted yet."""
        return self.snapshot is None and self.consecutive_failures > 0

    @property
    def is_given_up(self) -> bool:
        return self.consecutive_failures >= MAX_CONSECUTIVE_FAILURES

    @property
    def is_updating(self) -> bool:
        return self.update_task is not None and not self.update_task.done()


class EngineGroup:
    """Engines with the same weights; implements `PolicyEngine`. The group is independent of their
    location, and uses only the clock of the event loop.

    Args:
        clients: clients of the engines.
        take_snapshot: function that collects the current weights as a version while engines sample.
        tolerance: maximum difference between log-probabilities of an engine and of the trained
            model, in nats.
        log: function that prints a log message.
    """

    def __init__(
        self,
        clients: Sequence[EngineClient],
        take_snapshot: Callable[[int], Awaitable[WeightSnapshot]],
        tolerance: float,
        log: Callable[[str], None],
    ) -> None:
        self.version = 0
        self.last_update_metrics: dict[str, float] = {}  # cost of the last publish
        self._engines = [_EngineState(client) for client in clients]
        self._take_snapshot = take_snapshot
        self._tolerance = tolerance
        self._log = log
        self._router = SessionRouter(len(clients))
        self._snapshot: WeightSnapshot | None = None  # the newest weights
        self._snapshot_lock = asyncio.Lock()  # trainers collect them once
        self._active_calls = 0

    @property
    def live_engines(self) -> list[int]:
        """Indices of the engines that accept requests."""
        return [i for i, engine in enumerate(self._engines) if engine.snapshot is not None]

    @property
    def engine_restarts(self) -> int:
        """Number of crashes so far; each restarts an engine until it is given up."""
        return sum(engine.crashes for engine in self._engines)

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        """Continue `ids` on one of the engines. The sample depends only on the seed and the
        weights, not on the choice of the engine, or on crashes.

        Raises UserError if no engine is left, or an engine samples from wrong weights.
        """
        self._active_calls += 1
        try:
            while True:
                await self._wait_for_live()
                with suppress(ActorLostError):
                    return await self._generate_once(ids, sampling, session)
        finally:
            self._active_calls -= 1

    def release(self, session: str) -> None:
        """Release a session on its engine."""
        self._release_from(self._router.forget(session), session)

    async def sleep(self) -> None:
        """Drop all sessions. Raises RuntimeError while requests are active."""
        if self._active_calls:
            raise RuntimeError("the engines cannot sleep while they are generating")
        for index in self.live_engines:
            engine = self._engines[index]
            crashes = engine.crashes
            try:
                await engine.client.sleep()
            except ActorLostError as error:
                self._mark_lost(engine, crashes, error)

    async def snapshot_weights(self) -> None:
        """Give the engines their own copy of the weights: the current ones, if none were published
        yet."""
        await self._get_latest_snapshot()

    async def update_weights(self, version: int) -> None:
        """Publish the current weights to all engines, and verify them by the probe.

        Engines continue to sample until the new weights arrive. Active turns keep their tokens, and
        continue with the new weights. An engine that crashes during the update receives the weights
        after its restart; the update does not wait for it.
        """
        clock = asyncio.get_running_loop().time
        start_time = clock()
        async with self._snapshot_lock:
            self._snapshot, self.version = None, version  # None frees the old weights
            snapshot = self._snapshot = await self._take_snapshot(version)
        self._update_all()
        while any(engine.is_updating and not engine.is_lost for engine in self._engines):
            await self._wait_for_update()
        await self._wait_for_live()
        self.last_update_metrics = {
            "publish_seconds": clock() - start_time,
            "publish_bytes": float(snapshot.nbytes * len(self.live_engines)),
            "engine_restarts": float(self.engine_restarts),
        }

    async def close(self) -> None:
        """Cancel weight updates in flight. Finished ones may belong to an event loop that is closed
        now."""
        pending = [task for task in self._update_tasks if not task.done()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    # ---- turns

    async def _generate_once(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        clock, tokens = asyncio.get_running_loop().time, 0
        index, previous_index = self._router.route(session, ids, self.live_engines)
        self._release_from(previous_index, session)
        engine = self._engines[index]
        start_time, crashes = clock(), engine.crashes
        try:
            completion = await engine.client.generate(ids, sampling, session)
            tokens, engine.consecutive_failures = len(completion.ids), 0
            return completion
        except ActorLostError as error:
            self._mark_lost(engine, crashes, error)
            raise
        finally:
            self._router.record(index, tokens, clock() - start_time)

    def _release_from(self, index: int | None, session: str) -> None:
        if index is not None and self._engines[index].snapshot is not None:
            self._engines[index].client.release(session)

    # ---- weights

    async def _get_latest_snapshot(self) -> WeightSnapshot:
        async with self._snapshot_lock:
            if self._snapshot is None:
                self._snapshot = await self._take_snapshot(self.version)
            return self._snapshot

    async def _wait_for_live(self) -> None:
        """Wait until an engine accepts requests."""
        self._raise_failure()
        if not self.live_engines:
            self._update_all()
        while not self.live_engines:
            if not any(engine.is_updating for engine in self._engines):
                raise UserError(
                    f"all engines failed: each crashed {MAX_CONSECUTIVE_FAILURES} times in a row"
                    " without completing a request; see Ray's logs on this machine"
                    " (/tmp/ray/session_latest/logs)."
                )
            await self._wait_for_update()

    async def _wait_for_update(self) -> None:
        """Wait until an update ends, and raise its error."""
        pending = [task for task in self._update_tasks if not task.done()]
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise the error of an update that has failed."""
        for task in self._update_tasks:
            if task.done() and not task.cancelled():
                task.result()

    @property
    def _update_tasks(self) -> list[asyncio.Task[None]]:
        return [engine.update_task for engine in self._engines if engine.update_task is not None]

    def _update_all(self) -> None:
        for engine in self._engines:
            self._start_update(engine)

    def _start_update(self, engine: _EngineState) -> None:
        """Start to send the newest weights to an engine. Raises the error of a failed update."""
        self._raise_failure()
        if not (engine.is_updating or engine.is_given_up):
            engine.update_task = asyncio.create_task(
                self._push_weights(engine), name=engine.client.name
            )

    async def _push_weights(self, engine: _EngineState) -> None:
        while not engine.is_given_up:
            snapshot = await self._get_latest_snapshot()
            if engine.snapshot is snapshot:
                return
            crashes = engine.crashes
            try:
                await engine.client.wait_until_ready()
                probe = await engine.client.load_snapshot(snapshot)
            except ActorLostError as error:
                self._mark_lost(engine, crashes, error)
                continue
            difference = snapshot.probe.mean_abs_difference(probe.logprobs)
            self._require_probe_match(engine.client, difference)
            engine.snapshot = snapshot

    def _require_probe_match(self, client: EngineClient, difference: float) -> None:
        if math.isnan(difference) or difference > self._tolerance:
            raise UserError(
                f"{client.name} does not sample from the trained weights: its log-probabilities"
                f" differ by {difference:.3g} nats, more than the tolerance {self._tolerance:g};"
                " check that its device and the trainer's device compute the same results."
            )

    # ---- crashes

    def _mark_lost(self, engine: _EngineState, crashes: int, error: ActorLostError) -> None:
        """Record that an engine has crashed. `crashes` is their number when the failed request
        was sent: another request may already have recorded this crash."""
        if crashes != engine.crashes:
            return
        engine.crashes += 1
        engine.consecutive_failures += 1
        engine.snapshot = None
        outcome = "given up" if engine.is_given_up else "restarted"
        self._log(
            f"{engine.client.name} crashed ({error}); it is {outcome}, and its requests are retried"
        )
        self._start_update(engine)
