"""A server for an agent: until a signal stops it, gracefully."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn

from fieldcraft.engine.home import Home
from fieldcraft.records.events import Sink, nobody
from fieldcraft.rollout.ending import reserve
from fieldcraft.runs.agent import Agent
from fieldcraft.runs.loop import run_async
from fieldcraft.runs.sampling import GREEDY, Decoding
from fieldcraft.serving.app import create_app
from fieldcraft.serving.recording import Recording
from fieldcraft.serving.service import Limits, Service
from fieldcraft.tools.connections import more_descriptors
from fieldcraft.tools.serving import bound, config_of
from fieldcraft.types import UserError

CLOSING_SECONDS = 5  # for connections whose requests have ended


@dataclass(frozen=True, kw_only=True)
class Address:
    """Address where a server listens, and the token that it wants; None wants none."""

    host: str
    port: int
    token: str | None


def serve_agent(
    agent: Agent,
    name: str,
    address: Address,
    limits: Limits,
    how: Decoding = GREEDY,
    record: Path | None = None,
    say: Sink = nobody,
) -> None:
    """Serve an agent until SIGTERM or Ctrl-C. Then new requests are refused, and those under way
    have `limits.grace` seconds. Where a request does not say how it is sampled, `how` does.
    `record` is a folder that keeps every request, and `say`
    hears what the engine tells.

    Raises UserError for tools that cannot be used, an address that cannot be listened on, and a
    folder that cannot be written.
    """
    recording = Recording(record) if record else None
    more_descriptors()
    with bound("agent", address.host, address.port) as listener:
        folder = Path(tempfile.mkdtemp(prefix="fieldcraft-serve-"))  # nobody else's, and no guess
        home = Home(folder, say)
        try:
            run_async(_serve(agent, name, address, limits, how, recording, listener, home))
        finally:
            with suppress(OSError):  # logs of engines are left to be read
                folder.rmdir()


async def _serve(
    agent: Agent,
    name: str,
    address: Address,
    limits: Limits,
    how: Decoding,
    recording: Recording | None,
    listener: socket.socket,
    home: Home,
) -> None:
    try:
        service = await open_service(agent, name, limits, home, how, recording)
        await asyncio.sleep(0)  # where Ctrl-C ends it that came while the model was loaded
        app = create_app(service, address.token, address.host)
        config = config_of(
            app,
            address.host,
            address.token,
            timeout_graceful_shutdown=CLOSING_SECONDS,
        )
        await _Server(config, service, limits.grace).serve([listener])
    finally:
        await home.close()


async def open_service(
    agent: Agent,
    name: str,
    limits: Limits,
    home: Home,
    how: Decoding = GREEDY,
    recording: Recording | None = None,
) -> Service:
    """Open the tools and the engine of an agent, and return the service; `home` has what the engine
    starts. Raises UserError for tools or an engine that cannot be used, and for one that acts in an
    environment of others."""
    environment = agent.recipe.environment
    if environment.of_others:
        raise UserError(
            f"{agent.model} acts in the environment '{environment.name}', which asks it more than a"
            " question: only agents with tools of their own can be served."
        )
    env, engine = await agent.environment(), agent.served_by(home)
    await engine.publish(0)  # now, so that servers which do not start are no request's failure
    room = min(env.budget.total_tokens, engine.max_len) - reserve(env.dialect, env.budget)
    service = Service(
        name=name,
        env=env,
        engine=engine,
        limits=limits,
        room=room,
        how=how,
        recording=recording,
    )
    told = "Sessions in the engine that hold a cache or wait for one"
    service.metrics.watch("fieldcraft_agent_engine_sessions", told, lambda: engine.sessions)
    return service


class _Server(uvicorn.Server):
    """Answers what is under way before it stops. Ctrl-C a second time ends it at once."""

    def __init__(self, config: uvicorn.Config, service: Service, grace: float) -> None:
        super().__init__(config)
        self.service, self.grace = service, grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.service.closed or self._loop is None:
            super().handle_exit(sig, frame)
            self.force_exit = True
        else:
            self.service.closed = True
            self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._closing = asyncio.create_task(self._finish())

    async def _finish(self) -> None:
        await self.service.close(self.grace)
        self.should_exit = True
