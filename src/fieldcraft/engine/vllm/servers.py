"""The servers of a run: started here, or at the user's urls; and which weights they hold."""

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

from fieldcraft.engine.home import Home
from fieldcraft.engine.vllm.client import Gone, Server
from fieldcraft.engine.vllm.process import Process, find_vllm
from fieldcraft.engine.vllm.weights import Origin, Weights, write_weights
from fieldcraft.records.files import make_folder
from fieldcraft.records.waits import waiting
from fieldcraft.types import Tokenizer, UserError

NAME = "policy"  # what a server that is started here calls its model
MOST_DEATHS = 3  # in a row, without a single answer in between
PACE = 0.5  # seconds between two looks at a server that is starting
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The settings with which servers are run. `max_rows` sessions are sampled at once; the rest is
    described where a recipe sets it, at `VllmEngine`."""

    max_rows: int
    threads: int | None  # of a CPU; None: the model is on another device
    memory: float
    max_len: int
    dtype: str
    tolerance: float
    timeout_seconds: float


class Owner(Protocol):
    """An engine, as its servers see it."""

    def newest(self) -> Weights:
        """Return the weights that it samples with from now on."""


class Servers(ABC):
    """Servers that hold the same weights. Sessions are dealt out among those that live.

    All engines of a run share them. One at a time may sample: its weights are on the servers.
    """

    def __init__(self, settings: Serving, home: Home) -> None:
        self.settings = settings
        self.home = home
        self._live: list[Server] = []
        self.max_len = 0  # tokens of a session; known once weights are held
        self._lock = asyncio.Lock()
        self._calls: dict[asyncio.Task[Any], tuple[Owner, Server]] = {}  # on their way
        self._deaths = 0  # in a row, without an answer in between

    @contextmanager
    def sampling(self, owner: Owner, session: str) -> Iterator[Server]:
        """Yield the server of a session, which has its prefix. It gets other weights only when the
        block has been left, and a failure inside is noted.

        Raises Gone if no server lives, or this one fails.
        """
        if not self._live:
            raise Gone("no server is left")
        server = self._live[zlib.crc32(session.encode()) % len(self._live)]
        call = asyncio.current_task()
        assert call is not None
        self._calls[call] = owner, server
        try:
            yield server
            self._deaths = 0
        except Gone as gone:
            self._lose(server, gone)
            raise
        finally:
            del self._calls[call]

    def publish(self, origin: Origin, tokenizer: Tokenizer, version: int) -> Weights:
        """Publish the weights of a policy as they are now, and return them. Raises UserError if
        they cannot be written."""
        return write_weights(origin, tokenizer, version, self.place)

    async def bring(self, weights: Weights) -> None:
        """Let weights travel to the servers that live, which sample on with what they hold. Files
        are there already."""
        return

    async def hold(self, owner: Owner, config: Mapping[str, Any]) -> Weights:
        """See to it that all servers that can be reached hold the newest weights of an engine, and
        prove it. What they are sampling for this engine is cut short. Returns the weights.

        Raises UserError if none can be reached, or what one samples from are other weights, and
        RuntimeError while another engine is sampling.
        """
        if self._all_hold(owner.newest()):
            return owner.newest()
        async with self._lock:
            weights = owner.newest()  # not those from before the lock: others may have come
            if self._all_hold(weights):  # since another call of this engine saw to it meanwhile
                return weights
            if any(other is not owner for other, _ in self._calls.values()):
                raise RuntimeError("two engines cannot sample from the same vLLM at once")
            late = [s for s in await self._reach(weights, config) if s.holds != weights.label]
            await self.bring(weights)
            for server in late:
                if server not in self._live:  # lost on the way
                    continue
                try:
                    await self._change(server, weights)
                except Gone as gone:
                    self._lose(server, gone)
            if not self._live:
                raise Gone("no server is left")
            self.max_len = min(server.max_len for server in self._live)
            return weights

    def _all_hold(self, weights: Weights) -> bool:
        return bool(self._live) and all(s.holds == weights.label for s in self._live)

    async def _change(self, server: Server, weights: Weights) -> None:
        """Give a server other weights while it samples nothing, and prove them."""
        await server.pause()
        try:
            while any(at is server for _, at in self._calls.values()):
                await server.pause()  # again, for what was still on its way to the server
            await self._load(server, weights)
        finally:
            await server.resume()  # a paused server of the user's would hang
        await self._prove(server, weights)

    async def _load(self, server: Server, weights: Weights) -> None:
        """Let a server that is paused take over weights."""
        await server.load(weights.folder, weights.label)

    async def forget(self) -> None:
        """Empty the caches of all servers."""
        for server in list(self._live):
            try:
                await server.forget()
            except Gone as gone:
                self._lose(server, gone)

    async def close(self) -> None:
        """End what is still asked, and all connections."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for server in self._live:
            await server.close()
        self._live = []

    def _lose(self, server: Server, gone: Gone) -> None:
        """Record that a server has gone; it gets no session any more until it can be reached
        again."""
        if server in self._live:
            self._live.remove(server)
            self.home.say(f"vLLM: {gone}; what it was asked for is asked again")

    @abstractmethod
    async def check(self, config: Mapping[str, Any]) -> None:
        """Raise UserError for a server that runs already and cannot be used."""

    @property
    @abstractmethod
    def place(self) -> Path:
        """Folder that weights pass through."""

    @abstractmethod
    async def _reach(self, weights: Weights, config: Mapping[str, Any]) -> Sequence[Server]:
        """Find the servers, start those that have to be started, and set `_live`."""

    async def _await(
        self,
        url: str,
        log: Path,
        look: Callable[[], Awaitable[None]],
        weights: Weights,
        config: Mapping[str, Any],
    ) -> Server:
        """Wait for the server at a url, which is starting with these weights, and return it once it
        is ready. `look` raises UserError if it has ended."""
        server = Server(url, self.settings.timeout_seconds)
        try:
            with waiting("the engine", f"vLLM at {url}, which starts (its log is {log})"):
                async for attempt in AsyncRetrying(
                    retry=retry_if_exception_type(Gone),
                    wait=wait_fixed(PACE),
                    stop=stop_after_delay(self.settings.timeout_seconds),
                    reraise=True,
                ):
                    with attempt:
                        await look()
                        await server.answers()
            await server.check(config)
            await server.name_weights(weights.label)
            await self._prove(server, weights)
        except Gone as gone:
            await look()
            raise UserError(
                f"vLLM was not ready within {self.settings.timeout_seconds:g} s: raise"
                f" engine.timeout_seconds, or look into its log {log}."
            ) from gone
        return server

    async def _prove(self, server: Server, weights: Weights) -> None:
        gap = await server.prove(weights.proof, weights.label)
        if math.isnan(gap) or gap > self.settings.tolerance:
            raise UserError(
                f"the server {server.url} does not sample from the weights that are trained: its"
                f" log-probabilities are {gap:.3g} nats from theirs, more than engine.tolerance"
                f" ({self.settings.tolerance:g}); if its logprobs-mode is processed_logprobs and"
                " its dtype that of the recipe, use engine=local for this model."
            )
        server.holds = weights.label


class Remote(Servers):
    """Servers of the user's, which must see the folder `place`."""

    def __init__(
        self, urls: Sequence[str], exchange: Path | None, settings: Serving, home: Home
    ) -> None:
        super().__init__(settings, home)
        self._all = [Server(url, settings.timeout_seconds) for url in urls]
        self._place = (exchange or home.folder).absolute()

    @property
    def place(self) -> Path:
        return self._place

    async def check(self, config: Mapping[str, Any]) -> None:
        for server in self._all:
            try:
                await server.check(config)
            except Gone as gone:
                raise UserError(f"{gone}: start the server, or change engine.urls.") from gone

    async def _reach(self, weights: Weights, config: Mapping[str, Any]) -> Sequence[Server]:
        self._live, why = [], ""
        for server in self._all:
            try:
                if not server.max_len:
                    await server.check(config)
                await server.remember()
                self._live.append(server)
            except Gone as gone:
                why = str(gone)
        if not self._live:
            raise UserError(f"no server of engine.urls answers ({why}): start it, or give another.")
        return list(self._live)


class Own(Servers):
    """One server, started here when it is first needed, and again if it dies."""

    def __init__(
        self, python: Path, exchange: Path | None, settings: Serving, home: Home, shared: Path
    ) -> None:
        super().__init__(settings, home)
        self.python = python
        self._exchange = exchange or shared
        self._scratch: Path | None = None
        self._process: Process | None = None

    @property
    def place(self) -> Path:
        if self._scratch is None:
            make_folder(self._exchange)
            self._scratch = Path(tempfile.mkdtemp(prefix="fieldcraft-", dir=self._exchange))
        return self._scratch

    async def check(self, config: Mapping[str, Any]) -> None:
        find_vllm(self.python)

    async def close(self) -> None:
        await super().close()
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    async def _reach(self, weights: Weights, config: Mapping[str, Any]) -> Sequence[Server]:
        if self._live and self._process is not None and self._process.alive:
            return list(self._live)  # what it holds does not change behind our back
        if self._process is not None:
            self._process.stop()
            self._deaths += 1
            if self._deaths >= MOST_DEATHS:
                raise UserError(f"{self._process.cause()}.")
        for server in self._live:
            await server.close()
        self._live = [await self._start(weights, config)]
        return list(self._live)

    async def _start(self, weights: Weights, config: Mapping[str, Any]) -> Server:
        await self.check(config)
        make_folder(self.home.folder)
        log = self.home.folder / "vllm.log"
        options, variables = launch(self.settings, weights)
        process = Process(self.python, options, variables, self.place, log)
        self._process = process
        self.home.say(f"vLLM starts, which may take a minute; its log is {log}")

        async def look() -> None:
            if not process.alive:
                raise UserError(f"{process.cause()}.")

        return await self._await(process.url, log, look, weights, config)


def launch(settings: Serving, weights: Weights) -> tuple[list[str], dict[str, str]]:
    """Return the options and the environment of a server that starts with these weights."""
    options = {
        "--model": str(weights.folder),
        "--served-model-name": NAME,
        "--dtype": settings.dtype,
        "--logprobs-mode": "processed_logprobs",  # of what is sampled from, temperature and all
        "--generation-config": "vllm",  # no temperature of the model's author
        "--max-num-seqs": str(settings.max_rows),
        "--max-model-len": str(settings.max_len),
        "--kv-cache-memory-bytes": str(int(settings.memory * GIB)),
        "--worker-extension-cls": "fieldcraft_worker.Worker",
    }
    switches = ["--enable-scale-out", "--disable-uvicorn-access-log"]
    variables = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if settings.threads is not None:
        options["--max-num-batched-tokens"] = str(max(settings.max_len, 8192))
        options["--block-size"] = "32"  # tokens that sessions share a prefix by; 128 by default
        switches += ["--enforce-eager", "--no-enable-chunked-prefill"]  # see Worker's `seeds`
        variables |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(settings.threads),
        }
    return [part for pair in options.items() for part in pair] + switches, variables
