"""Pools of vLLM servers, started for the run or attached by URL, and the weights that they hold."""

from __future__ import annotations

import asyncio
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from fieldcraft.concurrency import run_concurrently, run_to_the_end
from fieldcraft.engine.resources import RunResources
from fieldcraft.engine.weights import WeightFolder, WeightSnapshot, WeightSource
from fieldcraft.extensions.vllm.client import ServerLostError, VllmClient
from fieldcraft.extensions.vllm.process import (
    NodeLostError,
    ServerLauncher,
    VllmServerSettings,
    make_server_command,
)
from fieldcraft.records.files import make_folder
from fieldcraft.records.waits import report_wait
from fieldcraft.types import Tokenizer, UserError

MAX_CONSECUTIVE_FAILURES = 3  # without a response in between
POLL_SECONDS = 0.5  # seconds between polls of a starting server


class SnapshotOwner(Protocol):
    """Interface of an engine to its servers."""

    def get_latest_snapshot(self) -> WeightSnapshot:
        """Return the weights that the engine samples with from now on."""


class WeightTransport(Protocol):
    """Way of snapshots from trainers to running servers, faster than files."""

    async def distribute(self, snapshot: WeightSnapshot, pool: VllmServerPool) -> None:
        """Send a snapshot to all servers, if it can be sent; they load it later, and sample with
        the old weights until then. Servers that fail are marked lost."""


class VllmServerPool(ABC):
    """Pool of servers that hold the same weights. Sessions are distributed over the running ones.

    All engines of a run share the pool. Only one engine may sample at a time: the servers hold its
    weights.

    Args:
        settings: settings of the servers.
        resources: resources of the run.
        transport: way of snapshots to the servers; None: they load files.
    """

    def __init__(
        self,
        settings: VllmServerSettings,
        resources: RunResources,
        transport: WeightTransport | None = None,
    ) -> None:
        self.settings = settings
        self.resources = resources
        self.live_servers: list[VllmClient] = []
        self.max_len = 0  # tokens of a session; known once weights are loaded
        self._transport = transport
        self._lock = asyncio.Lock()
        self._sync_task: asyncio.Task[WeightSnapshot] | None = None  # until a call has its outcome
        self._calls: dict[asyncio.Task[Any], tuple[SnapshotOwner, VllmClient]] = {}  # in flight

    @contextmanager
    def lease_server(self, owner: SnapshotOwner, session: str) -> Iterator[VllmClient]:
        """Yield the server of a session, which caches its prefix. The server's weights do not
        change inside the block, and a failure inside marks the server as lost.

        Raises ServerLostError if no server is running, or this one fails.
        """
        if not self.live_servers:
            raise ServerLostError("no server is running")
        server = self.live_servers[zlib.crc32(session.encode()) % len(self.live_servers)]
        call = asyncio.current_task()
        assert call is not None
        self._calls[call] = owner, server
        try:
            yield server
            server.has_responded = True
        except ServerLostError as error:
            self.mark_lost(server, error)
            raise
        finally:
            del self._calls[call]

    def take_snapshot(
        self, source: WeightSource, tokenizer: Tokenizer, version: int
    ) -> WeightSnapshot:
        """Publish the current weights of a policy, and return the snapshot. Raises UserError if
        they cannot be written."""
        make_folder = partial(WeightFolder, self.exchange_folder, tokenizer)
        return source.take_snapshot(version, getattr(torch, self.settings.dtype), make_folder)

    async def distribute(self, snapshot: WeightSnapshot) -> None:
        """Send weights to the running servers, which continue to sample with the old ones. Nothing
        to do if they load files."""
        if self._transport is not None:
            await self._transport.distribute(snapshot, self)

    async def sync(self, owner: SnapshotOwner, config: Mapping[str, Any]) -> WeightSnapshot:
        """Load the newest weights of an engine on all reachable servers, and verify them with a
        probe. Their running requests for this engine are cut short. Returns the weights.

        Raises UserError if no server is reachable or a server samples with other weights, and
        RuntimeError while another engine is sampling.
        """
        if self._all_loaded(owner.get_latest_snapshot()):
            return owner.get_latest_snapshot()
        async with self._lock:
            # A start or a load takes longer than the time limit of some calls, so it outlives the
            # call that needs it first. It is cancelled only by `close` and the end of its loop.
            if self._sync_task is not None and not self._sync_task.cancelled():
                await self._finish_sync(self._sync_task)
            self._sync_task = asyncio.create_task(self._sync_all(owner, config))
            return await self._finish_sync(self._sync_task)

    async def _finish_sync(self, task: asyncio.Task[WeightSnapshot]) -> WeightSnapshot:
        """Return the result of a task, or raise its error. The task continues if this call is
        cancelled, and then the next call gets its error."""
        if not task.done():
            await asyncio.wait([task])
        self._sync_task = None
        return task.result()

    async def _sync_all(self, owner: SnapshotOwner, config: Mapping[str, Any]) -> WeightSnapshot:
        """Load the newest weights of an engine unless another call of it has loaded them."""
        snapshot = owner.get_latest_snapshot()
        if self._all_loaded(snapshot):
            return snapshot
        if any(other is not owner for other, _ in self._calls.values()):
            raise RuntimeError("two engines cannot sample from the same vLLM at once")
        outdated = [
            s for s in await self._connect(snapshot, config) if s.loaded_label != snapshot.label
        ]
        await self.distribute(snapshot)
        for server in outdated:
            if server not in self.live_servers:  # lost in the meantime
                continue
            try:
                await self._switch_weights(server, snapshot)
            except ServerLostError as error:
                self.mark_lost(server, error)
        if not self.live_servers:
            raise ServerLostError("no server is running")
        self.max_len = min(server.max_len for server in self.live_servers)
        return snapshot

    def _all_loaded(self, snapshot: WeightSnapshot) -> bool:
        return bool(self.live_servers) and all(
            s.loaded_label == snapshot.label for s in self.live_servers
        )

    async def _switch_weights(self, server: VllmClient, snapshot: WeightSnapshot) -> None:
        """Load weights on a server while it is not sampling, and verify them."""
        try:
            await server.pause()
            while any(called is server for _, called in self._calls.values()):
                await server.pause()  # again, for requests that were in transit to the server
            await self._load(server, snapshot)
        finally:
            # An attached server that stays paused would hang. A pause that fails may have begun.
            await run_to_the_end(server.resume())
        await self._require_probe_match(server, snapshot)

    async def _load(self, server: VllmClient, snapshot: WeightSnapshot) -> None:
        """Load weights on a paused server: those that it has received, or those in files."""
        if server.received_label == snapshot.label:
            await server.apply_received()
        else:
            await server.load(snapshot.folder, snapshot.label)

    async def reset_prefix_caches(self) -> None:
        """Clear the prefix caches of all servers."""
        for server in list(self.live_servers):
            try:
                await server.reset_prefix_cache()
            except ServerLostError as error:
                self.mark_lost(server, error)

    async def close(self) -> None:
        """Cancel pending calls, starts and loads, and close all connections."""
        pending: list[asyncio.Task[Any]] = list(self._calls)
        if self._sync_task is not None and not self._sync_task.done():
            pending.append(self._sync_task)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        self._sync_task = None
        for server in self.live_servers:
            await server.close()
        self.live_servers = []

    def mark_lost(self, server: VllmClient, error: ServerLostError) -> None:
        """Record that a server is lost; it gets no sessions until it is reachable again."""
        if server in self.live_servers:
            self.live_servers.remove(server)
            self.resources.log(f"vLLM: {error}; its requests are retried")

    @abstractmethod
    async def require_usable(self, config: Mapping[str, Any]) -> None:
        """Raise UserError if a running server cannot be used."""

    @property
    @abstractmethod
    def exchange_folder(self) -> Path:
        """Folder for the exchange of weights."""

    @abstractmethod
    async def _connect(
        self, snapshot: WeightSnapshot, config: Mapping[str, Any]
    ) -> Sequence[VllmClient]:
        """Find the servers, start missing ones, and set `live_servers`."""

    async def _require_probe_match(self, server: VllmClient, snapshot: WeightSnapshot) -> None:
        difference = await server.compare_probe(snapshot.probe, snapshot.label)
        if math.isnan(difference) or difference > self.settings.probe_tolerance:
            raise UserError(
                f"the server {server.url} does not sample from the trained weights: its"
                f" log-probabilities differ by {difference:.3g} nats, more than"
                f" engine.probe_tolerance ({self.settings.probe_tolerance:g}); if its logprobs-mode"
                " is processed_logprobs and its dtype matches the recipe, use engine=local for"
                " this model."
            )
        server.loaded_label = snapshot.label


class AttachedServerPool(VllmServerPool):
    """User-provided servers, which must have access to `exchange_folder`."""

    def __init__(
        self,
        urls: Sequence[str],
        weight_folder: Path | None,
        settings: VllmServerSettings,
        resources: RunResources,
    ) -> None:
        super().__init__(settings, resources)
        self._servers = [VllmClient(url, settings.timeout_seconds) for url in urls]
        self._exchange_folder = (weight_folder or resources.folder).absolute()

    @property
    def exchange_folder(self) -> Path:
        return self._exchange_folder

    async def require_usable(self, config: Mapping[str, Any]) -> None:
        for server in self._servers:
            try:
                await server.require_compatible(config)
            except ServerLostError as error:
                raise UserError(f"{error}: start the server, or change engine.urls.") from error

    async def _connect(
        self, snapshot: WeightSnapshot, config: Mapping[str, Any]
    ) -> Sequence[VllmClient]:
        self.live_servers, reason = [], ""
        for server in self._servers:
            try:
                if not server.max_len:
                    await server.require_compatible(config)
                await server.refresh_loaded_label()
                self.live_servers.append(server)
            except ServerLostError as error:
                reason = str(error)
        if not self.live_servers:
            raise UserError(
                f"no server in engine.urls responds ({reason}): start it, or set another URL."
            )
        return list(self.live_servers)


class LaunchedServerPool(VllmServerPool):
    """Servers that a launcher starts on first use. One that fails is restarted when no other server
    is left, or the next weights are published; until then the others take its sessions."""

    def __init__(
        self,
        launcher: ServerLauncher,
        settings: VllmServerSettings,
        resources: RunResources,
        transport: WeightTransport | None = None,
    ) -> None:
        super().__init__(settings, resources, transport)
        self._launcher = launcher
        self._servers: list[VllmClient | None] = [None] * launcher.num_servers
        self._failures = [0] * launcher.num_servers  # without a response in between

    @property
    def exchange_folder(self) -> Path:
        return self._launcher.exchange_folder

    async def require_usable(self, config: Mapping[str, Any]) -> None:
        for index in range(self._launcher.num_servers):
            await self._launcher.require_usable(index)

    async def close(self) -> None:
        await super().close()
        await self._launcher.close()

    async def _connect(
        self, snapshot: WeightSnapshot, config: Mapping[str, Any]
    ) -> Sequence[VllmClient]:
        jobs = [(index, snapshot, config) for index in range(len(self._servers))]
        await run_concurrently(jobs, self._ensure_running, len(jobs))
        self.live_servers = [server for server in self._servers if server is not None]
        if not self.live_servers:
            raise ServerLostError("no server is running")
        return list(self.live_servers)

    async def _ensure_running(
        self, index: int, snapshot: WeightSnapshot, config: Mapping[str, Any]
    ) -> None:
        """Start a server unless it is running. Nothing else changes the weights of one that is."""
        server = self._servers[index]
        try:
            if server in self.live_servers and await self._launcher.is_running(index):
                return
            if server is not None:
                await server.close()
                self._servers[index] = None
                self._failures[index] = 1 if server.has_responded else self._failures[index] + 1
            if self._failures[index] >= MAX_CONSECUTIVE_FAILURES:
                raise UserError(f"{await self._launcher.describe_exit(index)}.")
            self._servers[index] = await self._start(index, snapshot, config)
        except NodeLostError:  # retried with the next weights
            self._servers[index] = None

    async def _start(
        self, index: int, snapshot: WeightSnapshot, config: Mapping[str, Any]
    ) -> VllmClient:
        await self._launcher.require_usable(index)
        make_folder(self.resources.folder)
        url, log = await self._launcher.start(index, *make_server_command(self.settings, snapshot))
        self.resources.log(f"vLLM starts at {url}, which may take a minute; its log is {log}")
        server = VllmClient(url, self.settings.timeout_seconds)
        try:
            with report_wait("the engine", f"vLLM to start at {url} (its log is {log})"):
                async for attempt in AsyncRetrying(
                    retry=retry_if_exception_type(ServerLostError),
                    wait=wait_fixed(POLL_SECONDS),
                    stop=stop_after_delay(self.settings.timeout_seconds),
                    reraise=True,
                ):
                    with attempt:
                        await self._raise_if_exited(index)
                        await server.check_health()
            await server.require_compatible(config)
            await server.set_weight_label(snapshot.label)
            await self._require_probe_match(server, snapshot)
        except ServerLostError as error:
            await self._raise_if_exited(index)
            raise UserError(
                f"vLLM was not ready within {self.settings.timeout_seconds:g} s: raise"
                f" engine.timeout_seconds, or see its log {log}."
            ) from error
        return server

    async def _raise_if_exited(self, index: int) -> None:
        if not await self._launcher.is_running(index):
            raise UserError(f"{await self._launcher.describe_exit(index)}.")
