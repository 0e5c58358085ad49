"""The way of the MCP SDK to servers at a URL, within the limits that all other clients have.

The SDK follows redirects within the origin of the server alone, and gives none a time. What it does
not limit is the size of an answer. This module needs the extra `mcp`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from fieldcraft.tools.http import MAX_RESPONSE_BYTES

CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS = (
    30.0,
    300.0,
)  # the SDK's own; a stream may be silent for long
MAX_REDIRECTS = 5


class _BoundedStream(httpx2.AsyncByteStream):
    """The bytes of an answer, or of all events of a stream, up to MAX_RESPONSE_BYTES."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async for piece in self._stream:
            count += len(piece)
            if count > MAX_RESPONSE_BYTES:
                raise httpx2.StreamError(f"the answer is longer than {MAX_RESPONSE_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _limit_response(response: httpx2.Response) -> None:
    """Have an answer end where it is too long. Packed ones were not asked for, as they would grow
    behind the bound."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise httpx2.DecodingError(f"packed in a form that was not asked for ({encoding[:20]})")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _BoundedStream(response.stream)


@asynccontextmanager
async def open_bounded_transport(url: str) -> AsyncIterator[Any]:
    """Yield the streams of messages from and to a server, as the SDK's client takes them."""
    client = httpx2.AsyncClient(
        headers={"accept-encoding": "identity"},
        timeout=httpx2.Timeout(CONNECT_TIMEOUT_SECONDS, read=READ_TIMEOUT_SECONDS),
        max_redirects=MAX_REDIRECTS,
        event_hooks={"response": [_limit_response]},
    )
    async with (
        client,
        streamable_http_client(
            url, http_client=client, max_sse_event_size=MAX_RESPONSE_BYTES
        ) as streams,
    ):
        yield streams
