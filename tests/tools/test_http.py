"""Compressed responses and redirects for every HTTP client."""

import asyncio
import socket
import tracemalloc
import zlib

import httpx
import pytest

from bad_servers import Behaviour, raw_server
from fieldcraft.tools.http import (
    MAX_RESPONSE_BYTES,
    LimitedHttpClient,
    LoopHttpClient,
    ResponseTooLargeError,
    make_attempts,
    read_key,
)
from fieldcraft.types import UserError

HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\n"
TEXT = b'{"a": 1}\nsecond\r\n\nlast \xe2\x80\xa8 one'


def packed(body: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(body) + packer.flush()


def bomb() -> bytes:
    """Return 64 MiB of zero bytes, compressed to 64 KiB."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(bytes(2**22)) for _ in range(16)) + packer.flush()


def reply(body: bytes, encoding: bytes = b"gzip") -> Behaviour:
    def behave(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"content-encoding: " + encoding + b"\r\n\r\n" + body)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass

    return behave


def get(url: str) -> bytes:
    async def fetch() -> bytes:
        async with LimitedHttpClient(30, trust_env=False) as client:
            return (await client.get(url)).content

    return asyncio.run(fetch())


def stream_lines(url: str) -> list[str]:
    async def fetch() -> list[str]:
        lines: list[str] = []
        async with LimitedHttpClient(30, trust_env=False) as client:
            await client.stream_lines("GET", url, lines.append)
        return lines

    return asyncio.run(fetch())


def test_packed_answers_are_unpacked() -> None:
    lines = ['{"a": 1}', "second", "", "last \u2028 one"]
    for behave in (reply(packed(TEXT)), reply(packed(TEXT), b"X-GZIP"), reply(TEXT, b"identity")):
        with raw_server(behave) as (url, requests):
            assert get(url) == TEXT
            assert stream_lines(url) == lines
            assert b"accept-encoding: gzip\r\n" in requests[0].lower()
    with raw_server(reply(b"")) as (url, _):
        assert get(url) == b""


@pytest.mark.parametrize("read", [get, stream_lines])
def test_a_small_answer_that_unpacks_to_a_huge_one_is_left_at_the_limit(read) -> None:
    small = bomb()
    assert len(small) < 2**17
    with raw_server(reply(small)) as (url, _):
        tracemalloc.start()
        with pytest.raises(ResponseTooLargeError):
            read(url)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < 4 * MAX_RESPONSE_BYTES  # of the 64 MiB


@pytest.mark.parametrize(
    ("behave", "message"),
    [
        (reply(TEXT, b"br"), "not requested"),
        (reply(TEXT, b"zstd"), "not requested"),
        (reply(TEXT, b"gzip, gzip"), "not requested"),
        (reply(TEXT), "not compressed as its header states"),
        (reply(packed(TEXT)[:-9]), "body is truncated"),
    ],
)
def test_an_answer_that_is_packed_otherwise_is_a_failure(behave: Behaviour, message: str) -> None:
    with raw_server(behave) as (url, _):
        for read in (get, stream_lines):
            with pytest.raises(httpx.DecodingError, match=message):
                read(url)


@pytest.mark.parametrize(
    "location", [b"javascript:1", b"mailto:a@b", b"http://[::1", b"http://a:x/"]
)
def test_a_redirection_to_no_address_is_a_failure_of_the_server(location: bytes) -> None:
    def behave(connection: socket.socket) -> None:
        head = b"HTTP/1.1 302 A\r\ncontent-length: 0\r\nconnection: close\r\nlocation: "
        connection.sendall(head + location + b"\r\n\r\n")

    with raw_server(behave) as (url, _), pytest.raises(httpx.RemoteProtocolError):
        get(url)


def test_each_loop_has_its_own_client_until_it_is_closed() -> None:
    http = LoopHttpClient(30, trust_env=False)

    async def get_twice() -> LimitedHttpClient:
        assert await http.get() is await http.get()
        return await http.get()

    async def reopen() -> tuple[LimitedHttpClient, LimitedHttpClient]:
        first = await http.get()
        await http.close()
        return first, await http.get()

    first = asyncio.run(get_twice())
    assert first.is_closed  # with its loop
    second, third = asyncio.run(reopen())
    assert len({first, second, third}) == 3
    asyncio.run(http.close())  # the client of another loop is closed already


def test_loops_that_alternate_keep_their_clients() -> None:
    http = LoopHttpClient(30, trust_env=False)

    async def get() -> LimitedHttpClient:
        return await http.get()

    with asyncio.Runner() as first, asyncio.Runner() as second:
        found = [runner.run(get()) for runner in (first, second, first, second)]
    assert (found[0], found[1]) == (found[2], found[3])
    assert found[0] is not found[1]


@pytest.mark.parametrize(
    ("error", "count"),
    [(429, 3), (501, 3), (404, 1), (httpx.ConnectError, 3), (httpx.ReadTimeout, 1)],
)
def test_what_another_attempt_may_answer_is_repeated(error, count, monkeypatch) -> None:
    monkeypatch.setattr("fieldcraft.tools.http.MIN_WAIT_SECONDS", 0)
    requests = []

    async def request() -> None:
        requests.append(1)
        sent = httpx.Request("GET", "http://a")
        if isinstance(error, int):
            httpx.Response(error, request=sent).raise_for_status()
        raise error("no", request=sent)

    attempts = make_attempts(2, repeatable_errors=(httpx.ConnectError,))
    with pytest.raises(httpx.HTTPError):
        asyncio.run(attempts(request))
    assert len(requests) == count


@pytest.mark.parametrize("key", ["one\ntwo", "ключ", "a\x1bb"])
def test_a_key_that_no_header_can_contain_is_named(key, monkeypatch):
    monkeypatch.setenv("ODD_KEY", key)
    with pytest.raises(UserError, match="variable ODD_KEY contains a line break"):
        read_key("ODD_KEY")
    monkeypatch.setenv("ODD_KEY", " sk-1\r\n")
    assert read_key("ODD_KEY") == "sk-1"
    assert read_key("NO_SUCH_KEY") == ""
