"""Connections that are carried over messages: all bytes arrive, and no end fills the memory."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.extensions.sandbox.backends.relay import (
    MAX_CONNECTIONS,
    WINDOW_BYTES,
    Relay,
    RelayError,
)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Pair:
    """Both ends of a relay to a server. Messages are handled in their order."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.waiting_bytes: list[int] = []
        self.near = Relay(self._send_to_far)
        self.far = Relay(self._send_to_near)

    async def __aenter__(self) -> int:
        self.server = await asyncio.start_server(self.handler, "127.0.0.1", 0)
        self.entry = await asyncio.start_server(self.near.accept, "127.0.0.1", 0)
        self.tasks: list[asyncio.Future[None]] = []
        return self.entry.sockets[0].getsockname()[1]

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        self.entry.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _send_to_far(self, message: dict) -> None:
        if message.get("open"):
            carry = self.far.connect(message["connection"], self.open_streams)
            self.tasks.append(asyncio.ensure_future(carry()))
        else:
            self.far.receive(message)

    async def _send_to_near(self, message: dict) -> None:
        self.near.receive(message)

    async def open_streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.server.sockets[0].getsockname())


async def echo_reversed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a whole request, after the client has closed its direction."""
    writer.write((await reader.read())[::-1])
    await writer.drain()
    writer.close()


async def exchange(port: int, pieces: list[bytes]) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


@given(st.lists(st.lists(st.binary(max_size=100), max_size=5), min_size=1, max_size=5))
def test_what_is_sent_arrives(requests: list[list[bytes]]) -> None:
    async def story() -> list[bytes]:
        async with Pair(echo_reversed) as port:
            return await asyncio.gather(*(exchange(port, pieces) for pieces in requests))

    assert asyncio.run(story()) == [b"".join(pieces)[::-1] for pieces in requests]


def test_more_than_a_window_arrives() -> None:
    pieces = [bytes([i]) * (WINDOW_BYTES // 3) for i in range(20)]

    async def story() -> bytes:
        async with Pair(echo_reversed) as port:
            return await exchange(port, pieces)

    assert asyncio.run(story()) == b"".join(pieces)[::-1]


def test_a_connection_that_nobody_reads_stops_no_other() -> None:
    """The first client sends without end to a server that reads nothing of it."""
    stuck, never = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(1) == b"s":
            stuck.set()
            try:
                await never.wait()
            finally:
                writer.transport.abort()
        await echo_reversed(reader, writer)

    async def flood(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                writer.write(b"s" * 2**16)
                await writer.drain()
        finally:
            writer.transport.abort()

    async def story() -> bytes:
        async with Pair(answer) as port:
            flooding = asyncio.create_task(flood(port))
            await stuck.wait()
            found = await exchange(port, [b"nabc"])
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
            return found

    assert asyncio.run(story()) == b"cba"


def test_a_server_that_is_not_there_breaks_the_connection() -> None:
    async def refuse() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise ConnectionRefusedError

    async def story() -> bytes:
        pair = Pair(echo_reversed)
        pair.open_streams = refuse
        async with pair as port:
            try:
                return await exchange(port, [b"x"])
            except ConnectionError:
                return b""

    assert asyncio.run(story()) == b""


def test_a_client_that_leaves_in_the_middle_breaks_its_own_connection() -> None:
    """It has closed its direction, and then its end is broken, too. The server notices."""
    broken = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(1) == b"n":
            return await echo_reversed(reader, writer)
        try:
            while True:
                writer.write(b"x" * 2**16)
                await writer.drain()
        except OSError:
            broken.set()
        finally:
            writer.transport.abort()

    async def story() -> bytes:
        async with Pair(answer) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"s")
            writer.write_eof()
            await reader.readexactly(2**16)
            writer.transport.abort()
            await broken.wait()
            return await exchange(port, [b"nabc"])

    assert asyncio.run(story()) == b"cba"


def test_connections_are_counted() -> None:
    """Too many are closed at once, and others after them are carried again."""

    async def story() -> tuple[bytes, bytes]:
        async with Pair(echo_reversed) as port:
            held = [
                await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)
            ]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            refused = await reader.read()
            writer.close()
            for reader, writer in held:
                writer.write_eof()
                await reader.read()
                writer.close()
            return refused, await exchange(port, [b"ab"])

    assert asyncio.run(story()) == (b"", b"ba")


@pytest.mark.parametrize(
    "messages",
    [
        [{"data": "eA=="}] * (WINDOW_BYTES + 1),
        [{"data": ""}, {"data": "eA=="}],
        [{"data": "eA=="}, {"data": ""}, {"data": ""}],
    ],
)
def test_an_end_that_sends_more_than_it_may(messages: list[dict]) -> None:
    async def send(message: dict) -> None:
        await asyncio.Event().wait()

    async def wait_for_ever() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        await asyncio.Event().wait()
        raise AssertionError

    async def story() -> None:
        relay = Relay(send)
        carrying = asyncio.ensure_future(relay.connect(1, wait_for_ever)())
        try:
            with pytest.raises(RelayError):
                relay.connect(1, wait_for_ever)
            for message in messages[:-1]:
                relay.receive({"connection": 1, **message})
            with pytest.raises(RelayError, match="more than it may"):
                relay.receive({"connection": 1, **messages[-1]})
            relay.receive({"connection": 2, "data": "eA=="})  # one that has ended
        finally:
            carrying.cancel()

    asyncio.run(story())
