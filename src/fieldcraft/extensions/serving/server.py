"""Server for an agent, which shuts down gracefully on a signal."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from fieldcraft.engine.resources import RunResources
from fieldcraft.environments.termination import count_reserved_tokens
from fieldcraft.extensions.serving.app import create_app
from fieldcraft.extensions.serving.service import AgentService, RequestLog, ServiceLimits
from fieldcraft.records.events import EventHandler, ignore_event
from fieldcraft.runs.agent import Agent
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.sampling import GREEDY_DECODING, Decoding
from fieldcraft.tools.serving import bind_socket, make_server_config, raise_descriptor_limit

CONNECTION_CLOSE_SECONDS = 5  # to close connections whose requests have finished


@dataclass(frozen=True, kw_only=True)
class ListenAddress:
    """Address where a server listens, and the required token, or None."""

    host: str
    port: int
    token: str | None


def serve_agent(
    agent: Agent,
    name: str,
    address: ListenAddress,
    limits: ServiceLimits,
    decoding: Decoding = GREEDY_DECODING,
    log_folder: Path | None = None,
    on_event: EventHandler = ignore_event,
) -> None:
    """Serve an agent until SIGTERM or Ctrl-C.

    Then new requests are rejected, and active requests have `limits.shutdown_grace_seconds` seconds
    to finish. `decoding` has the default sampling settings. If `log_folder` is given, every request
    is logged there. `on_event` receives the events of the engine.

    Raises UserError for tools that cannot be used, an address that cannot be listened on, or a
    folder that cannot be written.
    """
    request_log = RequestLog(log_folder) if log_folder else None
    raise_descriptor_limit()
    with bind_socket("agent", address.host, address.port) as listener:
        folder = Path(tempfile.mkdtemp(prefix="fieldcraft-serve-"))  # private to this process
        resources = RunResources(folder, on_event)
        try:
            run_async(
                run_server(agent, name, address, limits, decoding, request_log, listener, resources)
            )
        finally:
            with suppress(OSError):  # not empty: logs of engines remain
                folder.rmdir()


async def run_server(
    agent: Agent,
    name: str,
    address: ListenAddress,
    limits: ServiceLimits,
    decoding: Decoding,
    request_log: RequestLog | None,
    listener: socket.socket,
    resources: RunResources,
) -> None:
    """Serve the agent on the listener until the process is interrupted, then close resources."""
    try:
        service = await open_service(agent, name, limits, resources, decoding, request_log)
        await asyncio.sleep(0)  # delivers a Ctrl-C from the time of model loading
        app = create_app(service, address.token, address.host)
        config = make_server_config(
            app,
            address.host,
            address.token,
            timeout_graceful_shutdown=CONNECTION_CLOSE_SECONDS,
        )
        await _DrainingServer(config, service, limits.shutdown_grace_seconds).serve([listener])
    finally:
        await resources.close()


async def open_service(
    agent: Agent,
    name: str,
    limits: ServiceLimits,
    resources: RunResources,
    decoding: Decoding = GREEDY_DECODING,
    request_log: RequestLog | None = None,
) -> AgentService:
    """Open the tools and the engine of an agent, and yield the service.

    `resources` owns the processes of the engine. Raises UserError for tools or an engine that
    cannot be used, and for an agent of an external environment.
    """
    env = await agent.open_tool_environment("served")
    engine = agent.make_streaming_engine(resources)
    await engine.update_weights(
        0
    )  # now, so that no request fails because of a server that does not start
    context_tokens = min(env.budget.max_context_tokens, engine.max_len) - count_reserved_tokens(
        env.dialect, env.budget
    )
    service = AgentService(
        name=name,
        env=env,
        engine=engine,
        limits=limits,
        context_tokens=context_tokens,
        decoding=decoding,
        request_log=request_log,
    )
    description = "Sessions in the engine that hold a cache or wait for one"
    service.metrics.add_gauge(
        "fieldcraft_agent_engine_sessions", description, lambda: engine.num_sessions
    )
    return service


class _DrainingServer(uvicorn.Server):
    """Server that finishes active requests before it stops. A second Ctrl-C stops it at once."""

    def __init__(self, config: uvicorn.Config, service: AgentService, grace_seconds: float) -> None:
        super().__init__(config)
        self.service, self.grace_seconds = service, grace_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._close_task: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.closed or self._loop is None:
            super().handle_exit(sig, frame)
            self.force_exit = True
        else:
            self.service.closed = True
            self._loop.call_soon_threadsafe(self._start_closing)

    def _start_closing(self) -> None:
        self._close_task = asyncio.create_task(self._close_service())

    async def _close_service(self) -> None:
        await self.service.close(self.grace_seconds)
        self.should_exit = True
