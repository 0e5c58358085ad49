"""HTTP servers with limits on their connections.

They run until Ctrl-C, or during a block of code in a thread or an event loop. The number of
connections and the timeouts of their clients are limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import resource
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fieldcraft.terminal.console import print_line
from fieldcraft.tools.addresses import open_listener, open_user_listener
from fieldcraft.tools.server_requests import BodyLimitMiddleware, SameOriginMiddleware

# Keep-alive time of an idle connection, in seconds. On a busy machine with many clients, the next
# request may take longer than uvicorn's default of 5.
KEEP_ALIVE_SECONDS = 75


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
    listener = open_user_listener(host, port)
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


# -- limits on connections ---------------------------------------------------------------------

RESERVED_DESCRIPTORS = 256  # descriptors left free for files, tools and engines
MAX_DESCRIPTORS = 2**16  # descriptors; a higher limit of the system would only cost memory
MAX_HEADER_BYTES = 2**16  # bytes of a request before its body

_BUSY_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)
# uvicorn selects its parser by the installed packages; both classes have the methods used here.
_Protocol: Any = AutoHTTPProtocol


def raise_descriptor_limit() -> None:
    """Raise the soft limit on open files of this process, for the connections of a server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(ValueError, OSError):  # macOS allows less than it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def get_max_connections() -> int:
    """Return the number of connections that this process can hold next to its other descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return max(descriptors - RESERVED_DESCRIPTORS, descriptors // 2)


class WaitState(enum.Enum):
    """Event that a server waits for at a connection."""

    REQUEST = enum.auto()  # the next request; uvicorn applies its keep-alive timeout
    HEADERS = enum.auto()
    BODY = enum.auto()
    ANSWER = enum.auto()  # the server's own answer, which has separate limits


@dataclass(kw_only=True)
class ConnectionLimiter:
    """Limits of one server, and its connections ordered by the start of their wait.

    A connection beyond `max_connections` replaces the connection that has been without a complete
    request for the longest time. If all have a complete request, the new connection is answered
    with 503. So connections that never send a request block no client.

    Args:
        max_connections: maximum number of open connections.
        header_timeout_seconds: time from the start of a connection, or the first byte of a further
            request, to the end of the headers.
        body_timeout_seconds: time from the end of the headers to the end of the body.
    """

    max_connections: int = field(default_factory=get_max_connections)
    header_timeout_seconds: float = 20
    body_timeout_seconds: float = 120
    idle: dict[_Connection, None] = field(default_factory=dict)

    def make_protocol(self, **options: Any) -> asyncio.Protocol:
        """Create the protocol of a connection, with the arguments that uvicorn passes to its own
        class."""
        return _Connection(self, **options)

    def get_timeout_seconds(self, wait: WaitState) -> float | None:
        """Return the client's timeout in this state, or None if the server does not wait for it."""
        if wait is WaitState.HEADERS:
            return self.header_timeout_seconds
        return self.body_timeout_seconds if wait is WaitState.BODY else None


class _Connection(_Protocol):
    def __init__(self, limiter: ConnectionLimiter, **options: Any) -> None:
        super().__init__(**options)
        self.limiter = limiter
        self.wait_state: WaitState | None = None
        self._header_bytes = 0  # bytes received without a complete request
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limiter.max_connections:
            oldest = next(iter(self.limiter.idle), None)
            if oldest is None:
                transport.write(_BUSY_RESPONSE)
                transport.close()
                return
            oldest.transport.abort()
            self.limiter.idle.pop(oldest)
        self._set_wait_state(WaitState.HEADERS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self not in self.connections:  # upgraded to a web socket, which has its own timeouts
            self._set_wait_state(None)
            return
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._set_wait_state(WaitState.BODY if self.cycle.more_body else WaitState.ANSWER)
            return
        self._set_wait_state(WaitState.HEADERS)
        self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADER_BYTES:
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._set_wait_state(WaitState.REQUEST)

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_wait_state(None)
        super().connection_lost(exc)

    def _set_wait_state(self, wait: WaitState | None) -> None:
        if wait is self.wait_state:
            return
        self.wait_state, self._header_bytes = wait, 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wait in (WaitState.REQUEST, WaitState.HEADERS):
            self.limiter.idle.setdefault(self)
        else:
            self.limiter.idle.pop(self, None)
        seconds = None if wait is None else self.limiter.get_timeout_seconds(wait)
        if seconds is not None:
            self._timer = self.loop.call_later(seconds, self.transport.abort)
