"""MCP servers at a URL that send endless or compressed responses, or redirect elsewhere."""

import asyncio
import gzip
import socket

import pytest

from bad_servers import HEAD, Behaviour, is_endless, raw_server, redirects
from fieldcraft.extensions.mcp.server import McpServer
from fieldcraft.tools.http import MAX_RESPONSE_BYTES
from fieldcraft.types import UserError

PATIENCE = 300  # seconds, more than any test needs


def streams_for_ever(connection: socket.socket) -> None:
    """Send an endless stream of small events, none of which is a response."""
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    while True:
        connection.sendall(b": nothing new\n" * 5000)


def is_packed(connection: socket.socket) -> None:
    """Send a body that is compressed to a hundredth of its size."""
    body = gzip.compress(b" " * 2 * MAX_RESPONSE_BYTES)
    head = b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body)
    connection.sendall(HEAD + head + body)
    while connection.recv(65536):
        pass


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (is_endless, f"the response is longer than {MAX_RESPONSE_BYTES} bytes"),
        (streams_for_ever, "cannot be used, because it (?!did not list its tools within)"),
        (is_packed, r"its encoding was not requested \(gzip\)"),
        (redirects, "/again not followed"),
    ],
    ids=["endless", "events", "packed", "redirects"],
)
def test_what_it_answers_has_bounds(server: Behaviour, why: str) -> None:
    with raw_server(server) as (url, requests), pytest.raises(UserError, match=why):
        asyncio.run(McpServer(f"{url}/mcp").list_tools(PATIENCE))
    assert b"accept-encoding: identity" in requests[0].lower()
