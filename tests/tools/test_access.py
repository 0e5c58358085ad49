"""Clients that may call a server that requires no token."""

import asyncio
import socket
import threading

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from fieldcraft.extensions.external_envs.gateway import create_gateway_app
from fieldcraft.extensions.serving.app import create_app
from fieldcraft.tools.serving import (
    KEEP_ALIVE_SECONDS,
    make_server_config,
    serve_in_loop,
    serve_in_thread,
)
from serving_parts import scripted


async def _hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


HELLO = Starlette(routes=[Route("/", _hello, methods=["GET", "POST"])])
EVIL = {"origin": "http://evil.example"}
REBOUND = {"host": "evil.example:8000"}


@pytest.mark.parametrize(
    ("headers", "local", "beyond"),
    [
        ({}, 200, 200),
        ({"host": "LOCALHOST:8000"}, 200, 200),
        ({"host": "[::1]:8000"}, 200, 200),
        ({"host": "sandbox.internal"}, 403, 200),  # other clients may use any name
        (REBOUND, 403, 200),
        (REBOUND | {"origin": "http://evil.example:8000"}, 403, 403),
        ({"host": "localhost.evil.example"}, 403, 200),
        ({"host": "evil.example@127.0.0.1"}, 200, 200),  # browsers do not send a user name there
        ({"host": "["}, 403, 200),
        ({"host": ""}, 403, 200),
        (EVIL, 403, 403),
        ({"origin": "null"}, 403, 403),
        ({"origin": "http://["}, 403, 403),
        ({"origin": "http://localhost:3000"}, 200, 200),  # a page of this machine
    ],
)
def test_pages_from_elsewhere_are_refused(headers: dict[str, str], local: int, beyond: int) -> None:
    for host, status in (("127.0.0.1", local), ("::1", local), ("0.0.0.0", beyond)):
        client = TestClient(make_server_config(HELLO, host).app, "http://127.0.0.1:8000")
        assert client.post("/", headers=headers).status_code == status, host


def test_a_token_keeps_them_out_by_itself() -> None:
    client = TestClient(make_server_config(HELLO, "127.0.0.1", "token").app, "http://proxy.example")
    assert client.post("/", headers=EVIL).text == "hello"


def test_the_servers_of_the_project_refuse_them() -> None:
    service, engine = scripted()
    with serve_in_thread(create_app(service)) as url:
        for headers, reason in ((EVIL, "Cross-origin requests"), (REBOUND, "Unknown host name")):
            response = httpx.post(f"{url}/v1/chat/completions", headers=headers, content=b"{}")
            assert (response.status_code, reason in response.text) == (403, True)
    assert engine.prompts == []

    async def gateway() -> int:
        async with serve_in_loop(create_gateway_app({})) as url, httpx.AsyncClient() as client:
            return (await client.post(f"{url}/a/reward", headers=EVIL)).status_code

    assert asyncio.run(gateway()) == 403


@pytest.mark.parametrize("token", [None, "token"])
def test_a_client_that_hangs_up_is_no_failure(
    token: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    disconnected = threading.Event()

    async def reads(request: Request) -> PlainTextResponse:
        try:
            return PlainTextResponse(await request.body())
        finally:
            disconnected.set()

    config = make_server_config(
        Starlette(routes=[Route("/", reads, methods=["POST"])]), "127.0.0.1", token
    )
    with serve_in_thread(config.app) as url:
        address = httpx.URL(url)
        with socket.create_connection((address.host, address.port)) as connection:
            head = f"POST / HTTP/1.1\r\nhost: {address.host}\r\ncontent-length: 99\r\n\r\nhalf"
            connection.sendall(head.encode())
        assert disconnected.wait(300)
    assert capsys.readouterr().err == ""


def test_idle_connections_are_kept_as_long_everywhere() -> None:
    assert make_server_config(HELLO, "127.0.0.1").timeout_keep_alive == KEEP_ALIVE_SECONDS == 75
