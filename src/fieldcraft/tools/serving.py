"""A server on a port: until Ctrl-C, or in a thread while a block of code runs."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from fieldcraft.terminal.console import print_line
from fieldcraft.tools.access import SameOriginMiddleware
from fieldcraft.tools.connections import ConnectionLimiter, raise_descriptor_limit
from fieldcraft.tools.request_bodies import BodyLimitMiddleware
from fieldcraft.types import UserError

# Seconds that an idle connection is kept. Where many clients share a busy machine, the next request
# of one may take longer than uvicorn's 5.
KEEP_ALIVE_SECONDS = 75
UNREAD_TIMEOUT_SECONDS = 60  # that bytes of an answer may wait for their client


def open_listener(host: str, port: int) -> socket.socket:
    """Open a socket that listens, whose connections send at once. Raises OSError.

    asyncio turns Nagle's algorithm off only for sockets that name their protocol, which those of
    `create_server` do not; every small answer would then wait 40 ms for a delayed acknowledgement.
    A client that stops reading its answer is cut off, where the system can do it.
    """
    listener = socket.create_server((host, port))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted ones inherit both
    if sys.platform == "linux":
        listener.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_TIMEOUT_SECONDS * 1000
        )
    return listener


def find_free_port(host: str) -> int:
    """Return a port at which nothing listens, for a process that is still to start. Raises
    OSError."""
    with open_listener(host, 0) as listener:
        port: int = listener.getsockname()[1]
    return port


def make_server_config(
    app: ASGIApp, host: str, token: str | None = None, **options: Any
) -> uvicorn.Config:
    """Return the configuration by which an application is served at an address, within the limits
    that all servers share: of connections, of the time that a client may take, and of bodies. Pages
    from elsewhere are refused, but where a `token` is wanted: they do not know it."""
    limited_app = BodyLimitMiddleware(_ignore_disconnects(app))
    outer_app = limited_app if token else SameOriginMiddleware(limited_app, host)
    options["http"] = ConnectionLimiter().make_protocol
    options["log_level"] = "error"  # a warning for each request that is none would fill a disk
    return uvicorn.Config(
        outer_app, access_log=False, timeout_keep_alive=KEEP_ALIVE_SECONDS, **options
    )


def _ignore_disconnects(app: ASGIApp) -> ASGIApp:
    """Return an application for which a client that hangs up in the middle of a request is no
    failure."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientDisconnect):
            await app(scope, receive, send)

    return call


class _CallbackServer(uvicorn.Server):
    """Calls `on_shutdown` before it waits for answers under way: those that go on until they are
    told, as streams of events do, end then."""

    def __init__(self, config: uvicorn.Config, on_shutdown: Callable[[], None]) -> None:
        super().__init__(config)
        self.on_shutdown = on_shutdown

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.on_shutdown()
        await super().shutdown(sockets)


def do_nothing() -> None:
    """Do nothing, which is what most servers have to do before they end."""


def serve_until_interrupt(
    app: ASGIApp,
    name: str,
    host: str,
    port: int,
    path: str = "",
    on_shutdown: Callable[[], None] = do_nothing,
    token: str | None = None,
) -> None:
    """Serve until Ctrl-C. For address and path see `bind_socket`, for the token
    `make_server_config`.

    Raises:
        UserError: the address cannot be listened on.
    """
    raise_descriptor_limit()
    server = _CallbackServer(make_server_config(app, host, token), on_shutdown)
    with bind_socket(name, host, port, path) as listener, contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def bind_socket(name: str, host: str, port: int, path: str = "") -> socket.socket:
    """Open a socket that listens for a server, and say so. Port 0 takes a free one, which is
    printed, with the `path` behind it.

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
    # uvicorn is silent about a socket that it is given.
    print_line(f"{name} server at http://{host}:{listener.getsockname()[1]}{path}")
    return listener


@contextlib.contextmanager
def serve_in_thread(
    app: ASGIApp, port: int = 0, on_shutdown: Callable[[], None] = do_nothing
) -> Iterator[str]:
    """Serve an ASGI application on the loopback, in a thread; gives its url. Port 0 takes a free
    one. Raises OSError if the port is taken."""
    with open_listener("127.0.0.1", port) as listener:
        server = _CallbackServer(make_server_config(app, "127.0.0.1"), on_shutdown)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=10)
