"""Pools of vLLM servers, started here or attached by URL, and the weights that they hold."""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from fieldcraft.engine.resources import RunResources
from fieldcraft.engine.weights import WeightSnapshot, WeightSource, write_snapshot
from fieldcraft.extensions.vllm.client import ServerLostError, VllmClient
from fieldcraft.extensions.vllm.process import VllmProcess, require_vllm
from fieldcraft.records.files import make_folder
from fieldcraft.records.waits import report_wait
from fieldcraft.types import Tokenizer, UserError

SERVED_MODEL_NAME = "policy"  # model name of a server that is started here
MAX_CONSECUTIVE_FAILURES = 3  # without a response in between
POLL_SECONDS = 0.5  # seconds between polls of a starting server
BYTES_PER_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class VllmServerSettings:
    """Settings of servers. At most `max_num_seqs` sessions are sampled at once; for the rest, see
    the arguments of `VllmEngine`, which a recipe sets."""

    max_num_seqs: int
    threads: int | None  # CPU threads; None: the model is on another device
    kv_cache_gb: float
    max_model_len: int
    dtype: str
    probe_tolerance: float
    timeout_seconds: float


class SnapshotOwner(Protocol):
    """Interface of an engine to its servers."""

    def get_latest_snapshot(self) -> WeightSnapshot:
        """Return the weights that the engine samples with from now on."""


class VllmServerPool(ABC):
    """Pool of servers that hold the same weights. Sessions are distributed over the running ones.

    All engines of a run share the pool. Only one engine may sample at a time: the servers hold its
    weights.
    """

    def __init__(self, settings: VllmServerSettings, resources: RunResources) -> None:
        self.settings = settings
        self.resources = resources
        self._live_servers: list[VllmClient] = []
        self.max_len = 0  # tokens of a session; known once weights are loaded
        self._lock = asyncio.Lock()
        self._calls: dict[asyncio.Task[Any], tuple[SnapshotOwner, VllmClient]] = {}  # in flight
        self._consecutive_failures = 0  # without a response in between

    @contextmanager
    def lease_server(self, owner: SnapshotOwner, session: str) -> Iterator[VllmClient]:
        """Yield the server of a session, which caches its prefix. The server's weights do not
        change inside the block, and a failure inside marks the server as lost.

        Raises ServerLostError if no server is running, or this one fails.
        """
        if not self._live_servers:
            raise ServerLostError("no server is running")
        server = self._live_servers[zlib.crc32(session.encode()) % len(self._live_servers)]
        call = asyncio.current_task()
        assert call is not None
        self._calls[call] = owner, server
        try:
            yield server
            self._consecutive_failures = 0
        except ServerLostError as error:
            self._mark_lost(server, error)
            raise
        finally:
            del self._calls[call]

    def take_snapshot(
        self, source: WeightSource, tokenizer: Tokenizer, version: int
    ) -> WeightSnapshot:
        """Publish the current weights of a policy, and return the snapshot. Raises UserError if
        they cannot be written."""
        return write_snapshot(source, tokenizer, version, self.exchange_folder)

    async def distribute(self, snapshot: WeightSnapshot) -> None:
        """Send weights to the running servers, which continue to sample with the old ones. Nothing
        to do if weights are exchanged as files."""
        return

    async def sync(self, owner: SnapshotOwner, config: Mapping[str, Any]) -> WeightSnapshot:
        """Load the newest weights of an engine on all reachable servers, and verify them with a
        probe. Their running requests for this engine are cut short. Returns the weights.

        Raises UserError if no server is reachable or a server samples with other weights, and
        RuntimeError while another engine is sampling.
        """
        if self._all_loaded(owner.get_latest_snapshot()):
            return owner.get_latest_snapshot()
        async with self._lock:
            snapshot = (
                owner.get_latest_snapshot()
            )  # read again under the lock, because it may have changed
            if self._all_loaded(snapshot):  # another call of this engine has loaded them
                return snapshot
            if any(other is not owner for other, _ in self._calls.values()):
                raise RuntimeError("two engines cannot sample from the same vLLM at once")
            outdated = [
                s for s in await self._connect(snapshot, config) if s.loaded_label != snapshot.label
            ]
            await self.distribute(snapshot)
            for server in outdated:
                if server not in self._live_servers:  # lost in the meantime
                    continue
                try:
                    await self._switch_weights(server, snapshot)
                except ServerLostError as error:
                    self._mark_lost(server, error)
            if not self._live_servers:
                raise ServerLostError("no server is running")
            self.max_len = min(server.max_len for server in self._live_servers)
            return snapshot

    def _all_loaded(self, snapshot: WeightSnapshot) -> bool:
        return bool(self._live_servers) and all(
            s.loaded_label == snapshot.label for s in self._live_servers
        )

    async def _switch_weights(self, server: VllmClient, snapshot: WeightSnapshot) -> None:
        """Load weights on a server while it is not sampling, and verify them."""
        await server.pause()
        try:
            while any(called is server for _, called in self._calls.values()):
                await server.pause()  # again, for requests that were in transit to the server
            await self._load(server, snapshot)
        finally:
            await server.resume()  # an attached server that stays paused would hang
        await self._require_probe_match(server, snapshot)

    async def _load(self, server: VllmClient, snapshot: WeightSnapshot) -> None:
        """Load weights on a paused server."""
        await server.load(snapshot.folder, snapshot.label)

    async def reset_prefix_caches(self) -> None:
        """Clear the prefix caches of all servers."""
        for server in list(self._live_servers):
            try:
                await server.reset_prefix_cache()
            except ServerLostError as error:
                self._mark_lost(server, error)

    async def close(self) -> None:
        """Cancel pending calls, and close all connections."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for server in self._live_servers:
            await server.close()
        self._live_servers = []

    def _mark_lost(self, server: VllmClient, error: ServerLostError) -> None:
        """Record that a server is lost; it gets no sessions until it is reachable again."""
        if server in self._live_servers:
            self._live_servers.remove(server)
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
        """Find the servers, start missing ones, and set `_live_servers`."""

    async def _wait_until_ready(
        self,
        url: str,
        log: Path,
        raise_if_exited: Callable[[], Awaitable[None]],
        snapshot: WeightSnapshot,
        config: Mapping[str, Any],
    ) -> VllmClient:
        """Wait until a server that is starting with these weights is ready, and return its client.
        `raise_if_exited` raises UserError if it has exited."""
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
                        await raise_if_exited()
                        await server.check_health()
            await server.require_compatible(config)
            await server.set_weight_label(snapshot.label)
            await self._require_probe_match(server, snapshot)
        except ServerLostError as error:
            await raise_if_exited()
            raise UserError(
                f"vLLM was not ready within {self.settings.timeout_seconds:g} s: raise"
                f" engine.timeout_seconds, or see its log {log}."
            ) from error
        return server

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
        self._live_servers, reason = [], ""
        for server in self._servers:
            try:
                if not server.max_len:
                    await server.require_compatible(config)
                await server.refresh_loaded_label()
                self._live_servers.append(server)
            except ServerLostError as error:
                reason = str(error)
        if not self._live_servers:
            raise UserError(
                f"no server in engine.urls responds ({reason}): start it, or set another URL."
            )
        return list(self._live_servers)


class LocalServerPool(VllmServerPool):
    """Pool of one server, started here on first use, and restarted if it exits."""

    def __init__(
        self,
        python: Path,
        weight_folder: Path | None,
        settings: VllmServerSettings,
        resources: RunResources,
        default_folder: Path,
    ) -> None:
        super().__init__(settings, resources)
        self.python = python
        self._exchange_root = weight_folder or default_folder
        self._scratch: Path | None = None
        self._process: VllmProcess | None = None

    @property
    def exchange_folder(self) -> Path:
        if self._scratch is None:
            make_folder(self._exchange_root)
            self._scratch = Path(tempfile.mkdtemp(prefix="fieldcraft-", dir=self._exchange_root))
        return self._scratch

    async def require_usable(self, config: Mapping[str, Any]) -> None:
        require_vllm(self.python)

    async def close(self) -> None:
        await super().close()
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    async def _connect(
        self, snapshot: WeightSnapshot, config: Mapping[str, Any]
    ) -> Sequence[VllmClient]:
        if self._live_servers and self._process is not None and self._process.is_running:
            return list(self._live_servers)  # nothing else changes its weights
        if self._process is not None:
            self._process.stop()
            self._consecutive_failures += 1
            if self._consecutive_failures >= MAX_CONSECUTIVE_FAILURES:
                raise UserError(f"{self._process.describe_exit()}.")
        for server in self._live_servers:
            await server.close()
        self._live_servers = [await self._start(snapshot, config)]
        return list(self._live_servers)

    async def _start(self, snapshot: WeightSnapshot, config: Mapping[str, Any]) -> VllmClient:
        await self.require_usable(config)
        make_folder(self.resources.folder)
        log = self.resources.folder / "vllm.log"
        options, variables = make_server_command(self.settings, snapshot)
        process = VllmProcess(self.python, options, variables, self.exchange_folder, log)
        self._process = process
        self.resources.log(f"starting vLLM, which may take a minute; its log is {log}")

        async def raise_if_exited() -> None:
            if not process.is_running:
                raise UserError(f"{process.describe_exit()}.")

        return await self._wait_until_ready(process.url, log, raise_if_exited, snapshot, config)


def make_server_command(
    settings: VllmServerSettings, snapshot: WeightSnapshot
) -> tuple[list[str], dict[str, str]]:
    """Return the options and environment variables of a server that starts with these weights."""
    options = {
        "--model": str(snapshot.folder),
        "--served-model-name": SERVED_MODEL_NAME,
        "--dtype": settings.dtype,
        "--logprobs-mode": "processed_logprobs",  # with temperature and truncation
        "--generation-config": "vllm",  # ignore the model's recommended temperature
        "--max-num-seqs": str(settings.max_num_seqs),
        "--max-model-len": str(settings.max_model_len),
        "--kv-cache-memory-bytes": str(int(settings.kv_cache_gb * BYTES_PER_GIB)),
        "--worker-extension-cls": "fieldcraft_worker.Worker",
    }
    flags = ["--enable-scale-out", "--disable-uvicorn-access-log"]
    variables = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if settings.threads is not None:
        options["--max-num-batched-tokens"] = str(max(settings.max_model_len, 8192))
        options["--block-size"] = "32"  # granularity in tokens of shared prefixes; 128 by default
        flags += ["--enforce-eager", "--no-enable-chunked-prefill"]  # see Worker's `seeds`
        variables |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(settings.threads),
        }
    return [part for pair in options.items() for part in pair] + flags, variables
