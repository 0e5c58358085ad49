"""Connections of a server: how many may be open, and how long one may keep the server waiting."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import resource
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

RESERVED_DESCRIPTORS = 256  # descriptors for files, tools and engines, which connections leave free
MAX_DESCRIPTORS = 2**16  # descriptors; what limits of a system allow beyond would cost memory
MAX_HEADER_BYTES = 2**16  # bytes of a request before its body

_BUSY_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)
# uvicorn chooses its parser by what is installed; both classes have the methods that are used here.
_Protocol: Any = AutoHTTPProtocol


def raise_descriptor_limit() -> None:
    """Raise this process's limit of open files as far as it may by itself, for a server's
    connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(ValueError, OSError):  # macOS allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def get_max_connections() -> int:
    """Return how many connections this process can hold beside what else it opens."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return max(descriptors - RESERVED_DESCRIPTORS, descriptors // 2)


class WaitState(enum.Enum):
    """Event that a server waits for at a connection."""

    REQUEST = enum.auto()  # the next one; its keep-alive time is uvicorn's
    HEADERS = enum.auto()
    BODY = enum.auto()
    ANSWER = enum.auto()  # its own, which has limits of its own


@dataclass(kw_only=True)
class ConnectionLimiter:
    """The limits of one server, and its connections in the order in which their wait began.

    One connection more than `max_connections` takes the place of the one that has been without a
    whole request for longest; if all have one, it is answered with 503. So connections that never
    ask anything keep nobody out.

    Args:
        max_connections: connections that are open at once.
        header_timeout_seconds: from a connection's beginning, or the first byte of a further
            request, to the end of the headers.
        body_timeout_seconds: from there to the end of the body.
    """

    max_connections: int = field(default_factory=get_max_connections)
    header_timeout_seconds: float = 20
    body_timeout_seconds: float = 120
    idle: dict[_Connection, None] = field(default_factory=dict)

    def make_protocol(self, **options: Any) -> asyncio.Protocol:
        """Make the protocol of a connection, with the arguments that uvicorn gives its own
        class."""
        return _Connection(self, **options)

    def get_timeout_seconds(self, wait: WaitState) -> float | None:
        """Return how long a client may keep the server waiting so; None where nothing is its
        part."""
        if wait is WaitState.HEADERS:
            return self.header_timeout_seconds
        return self.body_timeout_seconds if wait is WaitState.BODY else None


class _Connection(_Protocol):
    def __init__(self, limiter: ConnectionLimiter, **options: Any) -> None:
        super().__init__(**options)
        self.limiter = limiter
        self.wait_state: WaitState | None = None
        self._header_bytes = 0  # bytes that came while there was no whole request
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
        if self not in self.connections:  # it became a web socket, which has times of its own
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
