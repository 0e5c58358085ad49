"""Connections of a server: how many may be open, and how long one may keep the server waiting."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import resource
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

RESERVED = 256  # descriptors for files, tools and engines, which connections leave free
ENOUGH = 2**16  # descriptors; what limits of a system allow beyond would cost memory
MOST_HEADERS = 2**16  # bytes of a request before its body

_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)
# uvicorn chooses its parser by what is installed; both classes have the methods that are used here.
_Protocol: Any = AutoHTTPProtocol


def more_descriptors() -> None:
    """Raise this process's limit of open files as far as it may by itself, for a server's
    connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """Return how many connections this process can hold beside what else it opens."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = ENOUGH if soft == resource.RLIM_INFINITY else soft
    return max(descriptors - RESERVED, descriptors // 2)


class Wait(enum.Enum):
    """Event that a server waits for at a connection."""

    REQUEST = enum.auto()  # the next one; its keep-alive time is uvicorn's
    HEADERS = enum.auto()
    BODY = enum.auto()
    ANSWER = enum.auto()  # its own, which has limits of its own


@dataclass(kw_only=True)
class Connections:
    """The limits of one server, and its connections in the order in which their wait began.

    One connection more than `most` takes the place of the one that has been without a whole request
    for longest; if all have one, it is answered with 503. So connections that never ask anything
    keep nobody out.

    Args:
        most: connections that are open at once.
        header_seconds: from a connection's beginning, or the first byte of a further request, to
            the end of the headers.
        body_seconds: from there to the end of the body.
    """

    most: int = field(default_factory=most_connections)
    header_seconds: float = 20
    body_seconds: float = 120
    idle: dict[_Connection, None] = field(default_factory=dict)

    def protocol(self, **given: Any) -> asyncio.Protocol:
        """Make the protocol of a connection, with the arguments that uvicorn gives its own
        class."""
        return _Connection(self, **given)

    def seconds(self, wait: Wait) -> float | None:
        """Return how long a client may keep the server waiting so; None where nothing is its
        part."""
        if wait is Wait.HEADERS:
            return self.header_seconds
        return self.body_seconds if wait is Wait.BODY else None


class _Connection(_Protocol):
    def __init__(self, limits: Connections, **given: Any) -> None:
        super().__init__(**given)
        self.limits = limits
        self.wait: Wait | None = None
        self._headers = 0  # bytes that came while there was no whole request
        self._alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limits.most:
            oldest = next(iter(self.limits.idle), None)
            if oldest is None:
                transport.write(_BUSY)
                transport.close()
                return
            oldest.transport.abort()
            self.limits.idle.pop(oldest)
        self._enter(Wait.HEADERS)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self not in self.connections:  # it became a web socket, which has times of its own
            self._enter(None)
            return
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._enter(Wait.BODY if self.cycle.more_body else Wait.ANSWER)
            return
        self._enter(Wait.HEADERS)
        self._headers += len(data)
        if self._headers > MOST_HEADERS:
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._enter(Wait.REQUEST)

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter(None)
        super().connection_lost(exc)

    def _enter(self, wait: Wait | None) -> None:
        if wait is self.wait:
            return
        self.wait, self._headers = wait, 0
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if wait in (Wait.REQUEST, Wait.HEADERS):
            self.limits.idle.setdefault(self)
        else:
            self.limits.idle.pop(self, None)
        seconds = None if wait is None else self.limits.seconds(wait)
        if seconds is not None:
            self._alarm = self.loop.call_later(seconds, self.transport.abort)
