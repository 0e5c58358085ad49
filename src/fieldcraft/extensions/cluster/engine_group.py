"""Group of engines used as one: it routes sessions, and retries the requests of lost engines."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
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
        self.engine_restarts = 0  # crashes so far; each restarts an engine until it is given up
        self._clients = clients
        self._take_snapshot = take_snapshot
        self._tolerance = tolerance
        self._log = log
        self._router = SessionRouter(len(clients))
        self._snapshot: WeightSnapshot | None = None  # the newest weights
        self._snapshot_lock = asyncio.Lock()  # trainers collect them once
        self._loaded_snapshots: list[WeightSnapshot | None] = [None] * len(clients)
        self._generations = [0] * len(clients)
        self._consecutive_failures = [0] * len(clients)  # in a row
        self._update_tasks: dict[
            int, asyncio.Task[None]
        ] = {}  # engines that are loading newer weights
        self._failure: BaseException | None = None
        self._active_calls = 0

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
        for engine in self.live_engines:
            try:
                await self._clients[engine].sleep()
            except ActorLostError as error:
                self._mark_lost(engine, self._generations[engine], error)

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
        while outdated := [
            self._update_tasks[e] for e in self._update_tasks if not self._is_lost(e)
        ]:
            await self._wait_for_any(outdated)
        await self._wait_for_live()
        self.last_update_metrics = {
            "publish_seconds": clock() - start_time,
            "publish_bytes": float(snapshot.nbytes * len(self.live_engines)),
            "engine_restarts": float(self.engine_restarts),
        }

    @property
    def live_engines(self) -> list[int]:
        """Indices of the engines that accept requests."""
        return [
            engine for engine, snapshot in enumerate(self._loaded_snapshots) if snapshot is not None
        ]

    async def close(self) -> None:
        """Cancel weight updates in flight."""
        tasks = list(self._update_tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- turns

    async def _generate_once(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        clock, tokens = asyncio.get_running_loop().time, 0
        request = self._router.route(session, ids, self.live_engines, clock())
        self._release_from(request.previous_engine, session)
        engine, generation = request.engine, self._generations[request.engine]
        try:
            completion = await self._clients[engine].generate(ids, sampling, session)
            tokens, self._consecutive_failures[engine] = len(completion.ids), 0
            return completion
        except ActorLostError as error:
            self._mark_lost(engine, generation, error)
            raise
        finally:
            self._router.record(session, request, len(ids), tokens, clock())

    def _release_from(self, engine: int | None, session: str) -> None:
        if engine is not None and self._loaded_snapshots[engine] is not None:
            self._clients[engine].release(session)

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
            if not self._update_tasks:
                raise UserError(
                    f"all engines failed: each crashed {MAX_CONSECUTIVE_FAILURES} times in a row"
                    " without completing a request; see Ray's logs on this machine"
                    " (/tmp/ray/session_latest/logs)."
                )
            await self._wait_for_any(list(self._update_tasks.values()))

    async def _wait_for_any(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)  # lets the callbacks of finished tasks run
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _update_all(self) -> None:
        for engine in range(len(self._clients)):
            self._start_update(engine)

    def _start_update(self, engine: int) -> None:
        """Start to send the newest weights to an engine."""
        if (
            engine in self._update_tasks
            or self._consecutive_failures[engine] >= MAX_CONSECUTIVE_FAILURES
        ):
            return
        task = asyncio.create_task(self._push_weights(engine), name=self._clients[engine].name)
        self._update_tasks[engine] = task

        def on_done(task: asyncio.Task[None]) -> None:
            del self._update_tasks[engine]
            if not task.cancelled():
                self._failure = self._failure or task.exception()

        task.add_done_callback(on_done)

    async def _push_weights(self, engine: int) -> None:
        client = self._clients[engine]
        while (
            self._loaded_snapshots[engine] is None
            or self._loaded_snapshots[engine] is not self._snapshot
        ):
            if self._consecutive_failures[engine] >= MAX_CONSECUTIVE_FAILURES:
                return
            snapshot, generation = await self._get_latest_snapshot(), self._generations[engine]
            try:
                await client.wait_until_ready()
                probe = await client.load_snapshot(snapshot)
            except ActorLostError as error:
                self._mark_lost(engine, generation, error)
                continue
            self._require_probe_match(client, snapshot.probe.mean_abs_difference(probe.logprobs))
            self._loaded_snapshots[engine] = snapshot

    def _require_probe_match(self, client: EngineClient, difference: float) -> None:
        if math.isnan(difference) or difference > self._tolerance:
            raise UserError(
                f"{client.name} does not sample from the trained weights: its log-probabilities"
                f" differ by {difference:.3g} nats, more than the tolerance {self._tolerance:g};"
                " check that its device and the trainer's device compute the same results."
            )

    # ---- crashes

    def _is_lost(self, engine: int) -> bool:
        """Return whether an engine has crashed and has not been restarted yet."""
        return self._loaded_snapshots[engine] is None and self._consecutive_failures[engine] > 0

    def _mark_lost(self, engine: int, generation: int, error: ActorLostError) -> None:
        """Record that an engine has crashed. `generation` counts its restarts, and the crash may
        already be recorded."""
        if generation != self._generations[engine]:
            return
        self._generations[engine] += 1
        self._consecutive_failures[engine] += 1
        self.engine_restarts += 1
        self._loaded_snapshots[engine] = None
        self._router.mark_lost(engine)
        outcome = (
            "restarted"
            if self._consecutive_failures[engine] < MAX_CONSECUTIVE_FAILURES
            else "given up"
        )
        self._log(
            f"{self._clients[engine].name} crashed ({error}); it is {outcome}, and its requests"
            " are retried"
        )
        self._start_update(engine)
