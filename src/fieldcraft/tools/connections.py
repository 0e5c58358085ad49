"""Limits on the connections of a server: their number, and the timeouts of their clients."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import resource
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

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
