"""HTTP transport of the MCP SDK, with the same size limit as all other clients.

The SDK follows redirects only within the origin of the server, and has timeouts. It does not limit
the size of a response. This module needs the extra `mcp`.
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
)  # defaults of the SDK; a stream may be idle for a long time
MAX_REDIRECTS = 5


class _BoundedStream(httpx2.AsyncByteStream):
    """Bytes of a response, or of all events of a stream, up to MAX_RESPONSE_BYTES."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async for piece in self._stream:
            count += len(piece)
            if count > MAX_RESPONSE_BYTES:
                raise httpx2.StreamError(f"the response is longer than {MAX_RESPONSE_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _limit_response(response: httpx2.Response) -> None:
    """Make a response fail if it is too long. Compressed responses are rejected, because they would
    grow beyond the limit after decompression."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise httpx2.DecodingError(f"its encoding was not requested ({encoding[:20]})")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _BoundedStream(response.stream)


@asynccontextmanager
async def open_bounded_transport(url: str) -> AsyncIterator[Any]:
    """Yield the message streams from and to a server, in the form that the SDK's client expects."""
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
