"""Servers enforce their limits, regardless of client behaviour at the sockets."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.sync.client import connect

from fieldcraft.tools import server_requests
from fieldcraft.tools.server_requests import BodyLimitMiddleware
from fieldcraft.tools.serving import (
    MAX_HEADER_BYTES,
    ConnectionLimiter,
    get_max_connections,
    open_listener,
    serve_in_thread,
)
from virtual_time import Clock
from waiting import wait_until

SECONDS = 300.0  # timeout after which a test fails; nothing else waits for it
GO_ON = threading.Event()  # lets held requests be answered
HELD = threading.Semaphore(0)  # counts the held requests


async def hold(request: Request) -> Response:
    await request.body()
    HELD.release()
    while not GO_ON.is_set():
        await asyncio.sleep(0.005)
    return PlainTextResponse("held")


async def echo(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def echo_once(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()


APP = Starlette(
    routes=[
        Route("/", echo, methods=["GET", "POST"]),
        Route("/hold", hold, methods=["POST"]),
        WebSocketRoute("/talk", echo_once),
    ]
)


@contextlib.contextmanager
def served(
    limits: ConnectionLimiter, app: object = APP, clock: Clock | None = None
) -> Iterator[tuple[str, int]]:
    """Serve an app with these limits and the clock of the test; yield its address."""
    config = uvicorn.Config(app, log_level="error", http=limits.make_protocol)  # type: ignore[arg-type]
    with open_listener("127.0.0.1", 0) as listener:
        server = uvicorn.Server(config)
        run = (clock or Clock()).run
        thread = threading.Thread(target=lambda: run(server.serve([listener])))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield listener.getsockname()
        finally:
            GO_ON.set()
            server.should_exit = server.force_exit = True
            thread.join(SECONDS)
            GO_ON.clear()


def opened(address: tuple[str, int], data: bytes = b"") -> socket.socket:
    """Open a connection and send `data`; `received` waits for its end."""
    client = socket.create_connection(address, timeout=SECONDS)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # sent without delay
    client.sendall(data)
    return client


def received(client: socket.socket) -> bytes:
    """Return everything received until the server closes the connection."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(65536):
            answer += piece
    return answer


def test_connections_leave_room_for_files():
    assert get_max_connections() > 0
    assert ConnectionLimiter().max_connections == get_max_connections()


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\nSlow: "],
    ids=["nothing", "half a line", "half a header"],
)
def test_a_client_that_sends_no_whole_headers_is_cut_off(sent: bytes) -> None:
    limits, clock = ConnectionLimiter(header_timeout_seconds=100), Clock()
    with served(limits, clock=clock) as address, opened(address, sent) as client:
        clock.jump(101)
        assert received(client) == b""


def test_a_byte_now_and_then_buys_no_time() -> None:
    """The timeout runs from the first byte, and further bytes do not restart it."""
    limits, clock = ConnectionLimiter(header_timeout_seconds=100), Clock()
    data = b"GET / HTTP/1.1\r\nHost: a\r\nSlow: "
    with served(limits, clock=clock) as address, opened(address, data) as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(10):
                client.sendall(b"a")
                clock.jump(25)
        client.settimeout(5)  # closed connections have ended by now
        assert received(client) == b""


def test_a_body_that_does_not_come_is_cut_off() -> None:
    data = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf"
    limits, clock = ConnectionLimiter(body_timeout_seconds=100), Clock()
    with served(limits, clock=clock) as address, opened(address, data) as client:
        clock.jump(101)
        assert b"200 OK" not in received(client)


def test_an_answer_under_way_has_no_time_of_the_client() -> None:
    """The time that a server takes to answer a complete request is not limited."""
    limits, clock = ConnectionLimiter(header_timeout_seconds=100, body_timeout_seconds=100), Clock()
    data = b"POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhalf"
    with served(limits, clock=clock) as address, opened(address, data) as client:
        assert HELD.acquire(timeout=SECONDS)
        clock.jump(1000)
        GO_ON.set()
        assert received(client).endswith(b"held")


def test_a_web_socket_may_be_silent() -> None:
    limits, clock = ConnectionLimiter(header_timeout_seconds=5), Clock()
    with (
        served(limits, clock=clock) as address,
        connect(f"ws://{address[0]}:{address[1]}/talk", open_timeout=SECONDS) as client,
    ):
        clock.jump(10)  # less than uvicorn's time between two pings
        client.send("and still there")
        assert client.recv(SECONDS) == "and still there"
    assert limits.idle == {}


def test_headers_have_a_length() -> None:
    data = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a: " + b"b" * (3 * MAX_HEADER_BYTES)
    with served(ConnectionLimiter()) as address, opened(address) as client:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            client.sendall(data)
        assert b"200 OK" not in received(client)


POST_HOLD = b"POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"


def test_who_asks_nothing_makes_room_for_who_asks() -> None:
    """The oldest idle connections close first, and connections being answered stay."""
    with served(ConnectionLimiter(max_connections=3)) as address, contextlib.ExitStack() as stack:
        held = stack.enter_context(opened(address, POST_HOLD))
        assert HELD.acquire(timeout=SECONDS)
        silent = [stack.enter_context(opened(address)) for _ in range(6)]
        assert [received(client) for client in silent[:4]] == [b""] * 4
        assert httpx.get(f"http://{address[0]}:{address[1]}/").text == "0"
        GO_ON.set()
        held.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert received(held).count(b"200 OK") == 2


def test_without_room_a_client_is_told_to_come_again() -> None:
    with served(ConnectionLimiter(max_connections=2)) as address, contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(opened(address, POST_HOLD))
            assert HELD.acquire(timeout=SECONDS)
        response = received(stack.enter_context(opened(address)))
        assert response.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 1" in response


def chunked(*pieces: bytes) -> Iterator[bytes]:
    """Send a body without a content length."""
    yield from pieces


def test_bodies_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_requests, "MAX_BODY_BYTES", 1000)
    monkeypatch.setattr(server_requests, "MAX_TOTAL_BYTES", 1500)
    door = BodyLimitMiddleware(APP)
    with served(ConnectionLimiter(), door) as (host, port):
        url = f"http://{host}:{port}"
        assert httpx.post(url, content=b"a" * 1000).text == "1000"
        assert httpx.post(url, content=b"a" * 1001).status_code == 413
        assert httpx.post(url, content=chunked(b"a" * 900)).text == "900"
        assert httpx.post(url, content=chunked(b"a" * 900, b"b" * 900)).status_code != 200
        wait_until(lambda: door.reserved_bytes == 0)  # the client may know before the app does
        waiting = socket.create_connection((host, port), timeout=SECONDS)
        waiting.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\nhalf")
        wait_until(lambda: door.reserved_bytes == 900)
        full = httpx.post(url, content=b"a" * 601)
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        assert httpx.post(url, content=b"a" * 600).text == "600"
        waiting.close()
        wait_until(lambda: door.reserved_bytes == 0)


@pytest.mark.parametrize("path", ["/", "/hold"])
def test_every_server_has_the_limits(path: str) -> None:
    """`serve_in_thread` and `serve_until_interrupt` use the same configuration."""
    with serve_in_thread(APP) as url:
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        message = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {2**40}\r\n\r\n"
        with opened((where.hostname, where.port), message.encode()) as client:
            assert client.recv(65536).startswith(b"HTTP/1.1 413")
