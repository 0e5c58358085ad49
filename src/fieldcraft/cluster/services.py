"""Search servers and sandbox workers in Ray actors, which Ray restarts after a crash."""

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

from fieldcraft.cluster.health import kill_if_unresponsive
from fieldcraft.cluster.remote import ActorLostError, await_result, import_ray
from fieldcraft.cluster.session import ClusterSession
from fieldcraft.engine.resources import RunResources
from fieldcraft.sandbox.sandbox import Sandbox
from fieldcraft.tools.python.server import create_app as sandbox_app
from fieldcraft.tools.search.index import SearchIndex
from fieldcraft.tools.search.server import create_app as search_app
from fieldcraft.tools.serving import find_free_port, make_server_config, open_listener
from fieldcraft.types import Tool, ToolUnavailableError

ServiceKind = Literal["search", "sandbox"]
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
RETRY_SECONDS = 1.0  # seconds between two attempts while servers are being restarted


class ServiceNode:
    """Actor that prepares a node for a server."""

    def prepare(
        self, kind: ServiceKind, index: Path | None, sandbox: Mapping[str, Any]
    ) -> tuple[str, int]:
        """Return the address of the node and a free port. Raises UserError if the server cannot be
        created there."""
        _make_app(kind, index, sandbox)
        host = import_ray().util.get_node_ip_address()
        return host, find_free_port(host)


class ServiceActor:
    """Actor that serves in a thread as soon as it is created. Ray recreates it after a crash, so
    the server then has the same address."""

    def __init__(
        self,
        kind: ServiceKind,
        index: Path | None,
        sandbox: Mapping[str, Any],
        address: tuple[str, int],
    ):
        config = make_server_config(_make_app(kind, index, sandbox), address[0])
        server = uvicorn.Server(config)
        run_arguments = {"sockets": [open_listener(*address)]}
        threading.Thread(target=server.run, kwargs=run_arguments, daemon=True).start()

    def get_process_id(self) -> int:
        """Return the id of this process, once the server listens."""
        return os.getpid()

    def block_forever(self) -> None:
        """Wait forever, so that the caller notices a crash."""
        threading.Event().wait()


def _make_app(kind: ServiceKind, index: Path | None, sandbox: Mapping[str, Any]) -> Starlette:
    if kind == "search":
        assert index is not None
        return search_app(SearchIndex.load(index))
    return sandbox_app(Sandbox(**sandbox))


@final
class ServicePool:
    """Servers of one kind, distributed over the nodes of a run. Crashes are logged to `resources`.
    `sandbox` has the arguments of a `Sandbox`."""

    def __init__(
        self,
        session: ClusterSession,
        resources: RunResources,
        kind: ServiceKind,
        count: int,
        index: Path | None = None,
        sandbox: Mapping[str, Any] = NO_SETTINGS,
    ) -> None:
        self.kind = kind
        self.urls: list[str] = []
        self._session = session
        self._resources = resources
        self._count = count
        self._arguments = (kind, index and index.absolute(), dict(sandbox))
        self.actors: list[Any] = []
        self._watch_tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all servers, and wait until they listen. Raises UserError for an index that cannot
        be read, and for a node that lacks a layer of isolation."""
        for number in range(self._count):
            node = self._session.nodes[number % len(self._session.nodes)]
            node_actor = self._session.start_on_node(node, ServiceNode)
            host, port = address = await await_result(node_actor.prepare.remote(*self._arguments))
            options = {"max_restarts": -1, "max_concurrency": 2}  # one call remains open
            self.actors.append(
                self._session.start_on_node(
                    node, ServiceActor, *self._arguments, address, **options
                )
            )
            self.urls.append(f"http://{host}:{port}")
        await asyncio.gather(*map(self._wait_until_listening, self.actors))
        self._watch_tasks = [
            asyncio.create_task(self._watch(number, actor))
            for number, actor in enumerate(self.actors)
        ]

    async def close(self) -> None:
        for task in self._watch_tasks:
            task.cancel()
        await asyncio.gather(*self._watch_tasks, return_exceptions=True)
        for actor in self.actors:
            import_ray().kill(actor)

    async def _wait_until_listening(self, actor: Any) -> None:
        """Wait until a server listens, even if it crashes before."""
        await await_result(actor.get_process_id.options(max_task_retries=-1).remote())

    async def _watch(self, number: int, actor: Any) -> None:
        while True:
            timeout_seconds = self._session.settings.heartbeat_timeout_seconds
            heartbeat_task = asyncio.create_task(kill_if_unresponsive(actor, timeout_seconds))
            try:
                await await_result(actor.block_forever.remote())
            except ActorLostError:
                self._resources.log(
                    f"{self.kind} server {number} crashed; it is restarted, and its calls"
                    " are retried"
                )
            finally:
                heartbeat_task.cancel()
                await asyncio.gather(heartbeat_task, return_exceptions=True)
            await self._wait_until_listening(actor)


@final
class FailoverTool:
    """`types.Tool` over replicated servers. A call that a server does not answer is retried with
    the next server.

    Args:
        tools: one tool for each server.
        timeout_seconds: time limit of a call; then the servers count as unavailable.
    """

    def __init__(self, tools: Sequence[Tool], timeout_seconds: float) -> None:
        self.name: str = tools[0].name
        self.schema: dict[str, Any] = tools[0].schema
        self._tools = tools
        self._timeout_seconds = timeout_seconds
        self._next = 0

    async def __call__(self, /, **arguments: Any) -> str:
        """Try the servers one after the other. Raises the errors of the tools; ToolUnavailableError
        only if no server responds in time."""
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(ToolUnavailableError),
            wait=self._retry_delay,
            stop=stop_after_delay(self._timeout_seconds),
            reraise=True,
        )
        text: str = await attempts(self._call_next, arguments)
        return text

    async def _call_next(self, arguments: dict[str, Any]) -> str:
        tool, self._next = self._tools[self._next], (self._next + 1) % len(self._tools)
        return await tool(**arguments)

    def _retry_delay(self, state: RetryCallState) -> float:
        """Return the seconds before the next attempt: 0 for the next server, and a pause before all
        of them are tried again."""
        return 0.0 if state.attempt_number % len(self._tools) else wait_fixed(RETRY_SECONDS)(state)
