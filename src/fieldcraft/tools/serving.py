"""HTTP servers that run until Ctrl-C, or during a block of code in a thread or an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from fieldcraft.terminal.console import print_line
from fieldcraft.tools.access import SameOriginMiddleware
from fieldcraft.tools.connections import ConnectionLimiter, raise_descriptor_limit
from fieldcraft.tools.request_bodies import BodyLimitMiddleware
from fieldcraft.types import UserError

# Keep-alive time of an idle connection, in seconds. On a busy machine with many clients, the next
# request may take longer than uvicorn's default of 5.
KEEP_ALIVE_SECONDS = 75
UNREAD_TIMEOUT_SECONDS = 60  # limit for sent bytes that the client does not read


def open_listener(host: str, port: int) -> socket.socket:
    """Open a listening socket whose connections send without delay. Raises OSError.

    asyncio disables Nagle's algorithm only for sockets with a known protocol, unlike the sockets of
    `create_server`; every small response would then wait 40 ms for a delayed acknowledgement. A
    client that stops reading its response is disconnected, if the system supports this.
    """
    listener = socket.create_server((host, port))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited on accept
    if sys.platform == "linux":
        listener.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_TIMEOUT_SECONDS * 1000
        )
    return listener


def find_free_port(host: str) -> int:
    """Return a free port for a process that has not started yet. Raises OSError."""
    with open_listener(host, 0) as listener:
        port: int = listener.getsockname()[1]
    return port


def make_server_config(
    app: ASGIApp, host: str, token: str | None = None, **options: Any
) -> uvicorn.Config:
    """Return the server configuration of an application at an address.

    All servers share the limits on connections, client timeouts and bodies. Foreign web pages are
    rejected, except with a `token`, which such pages do not know.
    """
    limited_app = BodyLimitMiddleware(_ignore_disconnects(app))
    outer_app = limited_app if token else SameOriginMiddleware(limited_app, host)
    options["http"] = ConnectionLimiter().make_protocol
    options["log_level"] = "error"  # a warning for each invalid request would fill the disk
    return uvicorn.Config(
        outer_app, access_log=False, timeout_keep_alive=KEEP_ALIVE_SECONDS, **options
    )


def _ignore_disconnects(app: ASGIApp) -> ASGIApp:
    """Return an application for which a client that disconnects during a request is not an
    error."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientDisconnect):
            await app(scope, receive, send)

    return call


class _CallbackServer(uvicorn.Server):
    """Server that calls `on_shutdown` before it waits for active responses.

    This ends responses that would otherwise continue forever, such as event streams.
    """

    def __init__(self, config: uvicorn.Config, on_shutdown: Callable[[], None]) -> None:
        super().__init__(config)
        self.on_shutdown = on_shutdown

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.on_shutdown()
        await super().shutdown(sockets)


def do_nothing() -> None:
    """Do nothing: the default `on_shutdown` callback."""


def serve_until_interrupt(
    app: ASGIApp,
    name: str,
    host: str,
    port: int,
    path: str = "",
    on_shutdown: Callable[[], None] = do_nothing,
    token: str | None = None,
) -> None:
    """Serve until Ctrl-C. See `bind_socket` for address and path, and `make_server_config` for the
    token.

    Raises:
        UserError: the address cannot be listened on.
    """
    raise_descriptor_limit()
    server = _CallbackServer(make_server_config(app, host, token), on_shutdown)
    with bind_socket(name, host, port, path) as listener, contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def bind_socket(name: str, host: str, port: int, path: str = "") -> socket.socket:
    """Open a listening socket for a server, and print its URL, which ends with `path`. Port 0
    selects a free port.

    Raises:
        UserError: the address cannot be listened on.
    """
    if not 0 <= port <= 65535:
        raise UserError(f"There is no port {port}; choose one from 0 to 65535.")
    try:
        listener = open_listener(host, port)
    except OSError as error:
        raise UserError(
            f"Cannot listen on {host}:{port} ({error}); stop what uses it or choose another port."
        ) from error
    # uvicorn does not log the address of a socket that it receives.
    print_line(f"{name} server at http://{host}:{listener.getsockname()[1]}{path}")
    return listener


@contextlib.contextmanager
def serve_in_thread(
    app: ASGIApp, port: int = 0, on_shutdown: Callable[[], None] = do_nothing
) -> Iterator[str]:
    """Serve an ASGI application on the loopback address, in a thread, and yield its URL.

    Port 0 selects a free port. Raises OSError if the port is in use.
    """
    with open_listener("127.0.0.1", port) as listener:
        server = _CallbackServer(make_server_config(app, "127.0.0.1"), on_shutdown)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=10)


class _InLoopServer(uvicorn.Server):
    """Server that leaves Ctrl-C to the run."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serve_in_loop(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an ASGI application on the loopback address, in the running event loop, which an engine
    needs, and yield its URL."""
    with open_listener("127.0.0.1", 0) as listener:
        server = _InLoopServer(make_server_config(app, "127.0.0.1", lifespan="off"))
        server_task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            server.force_exit = True  # no client waits for the remaining responses
            await server_task
