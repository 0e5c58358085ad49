"""Connections that are carried over a stream of messages, from a machine without a network.

A guest has this module as text, in Python 3.9 or newer. Each connection has a number. Its messages:
    {"connection": n, "open": true}      to the host: a program has connected
    {"connection": n, "data": base64}    bytes of a direction; none at its end
    {"connection": n, "read": bytes}     these have been passed on, so as many more may be sent
    {"connection": n, "lost": true}      the connection is broken
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

MAX_CONNECTIONS = 64  # at a time; more are closed
WINDOW_BYTES = 2**18  # of a direction on their way
_MIN_READ_BYTES = WINDOW_BYTES // 4  # of a message about them
_CHUNK_BYTES = 2**15
_Message = dict[str, Any]
SendMessage = Callable[[_Message], Awaitable[None]]
Carry = Callable[[], Awaitable[None]]
OpenStreams = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class RelayError(Exception):
    """The other end violates the protocol; the message is a clause."""


class _RelayedConnection:
    """End of a connection. No direction waits for the other, and none fills the memory."""

    def __init__(self, number: int, send: SendMessage) -> None:
        self._number = number
        self._send = send
        self._credit = WINDOW_BYTES
        self._has_credit = asyncio.Event()
        self._has_credit.set()
        self._received: asyncio.Queue[bytes] = asyncio.Queue()
        self._unread_bytes = 0
        self._has_ended = False
        self._is_lost = asyncio.Event()

    def receive(self, message: _Message) -> None:
        """Handle a message of the other end. Raises RelayError, and ValueError for other data."""
        if message.get("lost"):
            self._is_lost.set()
        elif message.get("read"):
            self._credit += message["read"]
            self._has_credit.set()
        else:
            data = base64.b64decode(message.get("data") or "", validate=True)
            self._unread_bytes += len(data)
            if self._has_ended or self._unread_bytes > WINDOW_BYTES:
                raise RelayError("a connection sends more than it may")
            self._has_ended = not data
            self._received.put_nowait(data)

    async def carry(self, open_streams: OpenStreams) -> None:
        """Carry both directions until they end."""
        try:
            reader, writer = await open_streams()
            await self._carry_streams(reader, writer)
        except OSError:
            await self._send({"connection": self._number, "lost": True})

    async def _carry_streams(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        sending = asyncio.ensure_future(self._send_stream(reader))
        writing = asyncio.ensure_future(self._write_stream(writer))
        tasks = {sending, writing, asyncio.ensure_future(self._wait_for_loss())}
        try:
            while not (sending.done() and writing.done()):
                done, _ = await asyncio.wait(
                    [task for task in tasks if not task.done()],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    task.result()
            writer.close()
        except BaseException:
            writer.transport.abort()  # closing would wait until all is written
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for_loss(self) -> None:
        await self._is_lost.wait()
        raise ConnectionResetError("the other end is broken")

    async def _send_stream(self, reader: asyncio.StreamReader) -> None:
        while True:
            await self._has_credit.wait()
            data = await reader.read(min(_CHUNK_BYTES, self._credit))
            self._credit -= len(data)
            if not self._credit:
                self._has_credit.clear()
            encoded = base64.b64encode(data).decode()
            await self._send({"connection": self._number, "data": encoded})
            if not data:
                return

    async def _write_stream(self, writer: asyncio.StreamWriter) -> None:
        read_bytes = 0
        while data := await self._received.get():
            writer.write(data)
            await writer.drain()
            self._unread_bytes -= len(data)
            read_bytes += len(data)
            if read_bytes >= _MIN_READ_BYTES:
                await self._send({"connection": self._number, "read": read_bytes})
                read_bytes = 0
        if writer.can_write_eof():
            writer.write_eof()


class Relay:
    """One end of the connections of a machine."""

    def __init__(self, send: SendMessage) -> None:
        """Create an end without connections. `send` sends a message to the other end."""
        self._send = send
        self._connections: dict[int, _RelayedConnection] = {}
        self._last_number = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a new connection of a program."""
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._last_number = number = self._last_number + 1

        async def open_streams() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            await self._send({"connection": number, "open": True})
            return reader, writer

        await self._add(number, open_streams)()

    def connect(self, number: int, open_streams: OpenStreams) -> Carry:
        """Add a connection that the other end has opened, and return what carries it. Raises
        RelayError."""
        if number in self._connections:
            raise RelayError("it opens a connection twice")
        if len(self._connections) >= 2 * MAX_CONNECTIONS:  # some have ended at the other end only
            return partial(self._send, {"connection": number, "lost": True})
        return self._add(number, open_streams)

    def _add(self, number: int, open_streams: OpenStreams) -> Carry:
        connection = self._connections[number] = _RelayedConnection(number, self._send)

        async def carry() -> None:
            try:
                await connection.carry(open_streams)
            finally:
                del self._connections[number]

        return carry

    def receive(self, message: _Message) -> None:
        """Handle a message about a connection, unless it has ended here. Raises RelayError, and
        ValueError for what is not base64."""
        connection = self._connections.get(message["connection"])
        if connection is not None:
            connection.receive(message)
