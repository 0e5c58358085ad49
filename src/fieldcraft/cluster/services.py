"""Search servers and sandbox workers in processes of Ray's, which starts those that die again."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, final

import uvicorn
from starlette.applications import Starlette
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_delay,
    wait_fixed,
)

from fieldcraft.cluster.health import end_if_silent
from fieldcraft.cluster.remote import Lost, answer, import_ray
from fieldcraft.cluster.session import Session
from fieldcraft.engine.home import Home
from fieldcraft.sandbox.sandbox import Sandbox
from fieldcraft.tools.python.server import create_app as sandbox_app
from fieldcraft.tools.search.index import SearchIndex
from fieldcraft.tools.search.server import create_app as search_app
from fieldcraft.tools.serving import config_of, free_port, listen
from fieldcraft.types import Tool, ToolUnavailable

Kind = Literal["search", "sandbox"]
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
PACE = 1.0  # seconds between two attempts while servers are being started again


class Ground:
    """A node on which a server is to be started."""

    def prepare(
        self, kind: Kind, index: Path | None, sandbox: Mapping[str, Any]
    ) -> tuple[str, int]:
        """Return the address of the node and a free port. Raises UserError if the server cannot be
        made there."""
        _app(kind, index, sandbox)
        host = import_ray().util.get_node_ip_address()
        return host, free_port(host)


class ServiceHost:
    """A server in a thread, from the making of this object on: Ray makes it anew after a death, and
    so the server has the same address then."""

    def __init__(
        self, kind: Kind, index: Path | None, sandbox: Mapping[str, Any], at: tuple[str, int]
    ):
        config = config_of(_app(kind, index, sandbox), at[0])
        server = uvicorn.Server(config)
        run = {"sockets": [listen(*at)]}
        threading.Thread(target=server.run, kwargs=run, daemon=True).start()

    def process(self) -> int:
        """Return the id of this process, once the server listens."""
        return os.getpid()

    def stay(self) -> None:
        """Wait for ever; whoever asked for it learns of the death."""
        threading.Event().wait()


def _app(kind: Kind, index: Path | None, sandbox: Mapping[str, Any]) -> Starlette:
    if kind == "search":
        assert index is not None
        return search_app(SearchIndex.load(index))
    return sandbox_app(Sandbox(**sandbox))


@final
class Services:
    """Servers of one kind, spread over the nodes of a run. The reader of `home` is told of those
    that die. `sandbox` are arguments of a `Sandbox`."""

    def __init__(
        self,
        session: Session,
        home: Home,
        kind: Kind,
        count: int,
        index: Path | None = None,
        sandbox: Mapping[str, Any] = NO_SETTINGS,
    ) -> None:
        self.kind = kind
        self.urls: list[str] = []
        self._session = session
        self._home = home
        self._count = count
        self._arguments = (kind, index and index.absolute(), dict(sandbox))
        self.actors: list[Any] = []
        self._watching: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Return when all servers listen. Raises UserError for an index that cannot be read, and
        for a node that lacks a layer of isolation."""
        for number in range(self._count):
            node = self._session.nodes[number % len(self._session.nodes)]
            ground = self._session.on(node, Ground)
            host, port = at = await answer(ground.prepare.remote(*self._arguments))
            options = {"max_restarts": -1, "max_concurrency": 2}  # one call stays
            self.actors.append(self._session.on(node, ServiceHost, *self._arguments, at, **options))
            self.urls.append(f"http://{host}:{port}")
        await asyncio.gather(*map(self._there, self.actors))
        self._watching = [
            asyncio.create_task(self._watch(number, actor))
            for number, actor in enumerate(self.actors)
        ]

    async def close(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        for actor in self.actors:
            import_ray().kill(actor)

    async def _there(self, actor: Any) -> None:
        """Return when a server listens, also if it dies meanwhile."""
        await answer(actor.process.options(max_task_retries=-1).remote())

    async def _watch(self, number: int, actor: Any) -> None:
        while True:
            seconds = self._session.settings.silence
            listening = asyncio.create_task(end_if_silent(actor, seconds))
            try:
                await answer(actor.stay.remote())
            except Lost:
                self._home.say(
                    f"{self.kind} server {number} has died; it is started again, and calls of it"
                    " are made again"
                )
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
            await self._there(actor)


@final
class InTurn:
    """A `types.Tool` over servers of the same thing. A call that one does not answer is made again,
    to the next one.

    Args:
        tools: one for each server.
        seconds: that a call may take; after them the servers count as unavailable.
    """

    def __init__(self, tools: Sequence[Tool], seconds: float) -> None:
        self.name: str = tools[0].name
        self.schema: dict[str, Any] = tools[0].schema
        self._tools = tools
        self._seconds = seconds
        self._next = 0

    async def __call__(self, /, **arguments: Any) -> str:
        """Ask the servers one after the other. Raises what the tools raise; ToolUnavailable only if
        none answers in time."""
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(ToolUnavailable),
            wait=self._wait,
            stop=stop_after_delay(self._seconds),
            reraise=True,
        )
        text: str = await attempts(self._ask, arguments)
        return text

    async def _ask(self, arguments: dict[str, Any]) -> str:
        tool, self._next = self._tools[self._next], (self._next + 1) % len(self._tools)
        return await tool(**arguments)

    def _wait(self, state: RetryCallState) -> float:
        """Return the seconds before the next attempt: none for the next server, and a pause before
        all of them are asked again."""
        return 0.0 if state.attempt_number % len(self._tools) else wait_fixed(PACE)(state)
