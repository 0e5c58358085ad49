"""Requests to servers that may be slow, endless or broken: limits of time and of size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from fieldcraft.tools.decompression import ACCEPTED_ENCODING, decompress_response

# Web sites that are in this process, by their addresses, as `mounts` of httpx.
InProcessSites = Mapping[str, httpx.AsyncBaseTransport]
NO_SITES: InProcessSites = MappingProxyType({})
MAX_RESPONSE_BYTES = 8 * 2**20  # of an answer; a hundred long passages have less than one MiB
# Of an answer that is sent unpacked. `content-length` is that of the packed one.
_TRANSFER_HEADERS = ("content-encoding", "content-length", "transfer-encoding")
# asyncio may stop its loop before it has closed a generator that nobody holds.
_loop_closers: WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncGenerator[None]]] = (
    WeakKeyDictionary()
)


async def close_with_loop(client: httpx.AsyncClient) -> None:
    """Close a client when asyncio ends the running loop, whether or not somebody still holds it."""
    closer = _make_closer(client)
    _loop_closers.setdefault(asyncio.get_running_loop(), []).append(closer)
    await anext(closer)


async def _make_closer(client: httpx.AsyncClient) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await client.aclose()


class ResponseTooLargeError(httpx.RequestError):
    """An answer is longer than MAX_RESPONSE_BYTES; the rest of it was not read."""


class LimitedHttpClient(httpx.AsyncClient):
    """A client each of whose requests is answered whole within `timeout_seconds`, or fails.

    httpx itself limits only the time between two pieces of an answer, so a server that sends a byte
    a second would never be given up. Waiting for a free connection counts too, so whoever shares a
    client limits how many requests are on their way.
    """

    def __init__(self, timeout_seconds: float, **settings: Any) -> None:
        super().__init__(timeout=httpx.Timeout(timeout_seconds, pool=None), **settings)
        self.headers["accept-encoding"] = ACCEPTED_ENCODING
        self.timeout_seconds = timeout_seconds

    async def send(
        self, request: httpx.Request, *, stream: bool = False, **options: Any
    ) -> httpx.Response:
        """Send a request and return the whole answer, whether or not `stream` asks for it in
        pieces.

        Raises:
            httpx.ReadTimeout: it was not there in time.
            ResponseTooLargeError: it is too long.
            httpx.RequestError: any other failure.
        """
        return await self._send_with_timeout(request, _read_fully, **options)

    async def stream_lines(
        self, method: str, url: str, on_line: Callable[[str], None], **content: Any
    ) -> httpx.Response:
        """Send a request and return the answer, without its content: `on_line` is called with each
        line as soon as it is there.

        Raises what `send` does.
        """

        async def read_lines(response: httpx.Response) -> httpx.Response:
            if response.is_error:
                return await _read_fully(response)
            async for line in _iterate_lines(response):
                on_line(line)
            return response

        return await self._send_with_timeout(self.build_request(method, url, **content), read_lines)

    async def _send_with_timeout(
        self,
        request: httpx.Request,
        read: Callable[[httpx.Response], Awaitable[httpx.Response]],
        **options: Any,
    ) -> httpx.Response:
        timeout = asyncio.timeout(self.timeout_seconds)
        try:
            async with timeout:
                response = await super().send(request, stream=True, **options)
                try:
                    return await read(response)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise httpx.ReadTimeout("the answer took too long", request=request) from error
        except httpx.InvalidURL as error:  # httpx reads `location` even where it does not follow
            message = "the answer redirects to no address"
            raise httpx.RemoteProtocolError(message, request=request) from error


async def _read_fully(response: httpx.Response) -> httpx.Response:
    """Return the response with its content, which is read piece by piece, as it is unpacked."""
    content = bytearray()
    async for piece in decompress_response(response):
        content += piece
        _raise_if_too_large(content)
    headers = [(k, v) for k, v in response.headers.multi_items() if k not in _TRANSFER_HEADERS]
    return httpx.Response(
        response.status_code,
        headers=headers,
        content=bytes(content),
        request=response.request,
        extensions=response.extensions,
        history=response.history,
    )


async def _iterate_lines(response: httpx.Response) -> AsyncIterator[str]:
    """Yield the lines of the response, without their ends."""
    line = bytearray()
    async for piece in decompress_response(response):
        *complete, rest = piece.split(b"\n")
        for line_end in complete:
            yield (line + line_end).decode(errors="replace").removesuffix("\r")
            line.clear()
        line += rest
        _raise_if_too_large(line)
    if line:
        yield line.decode(errors="replace")


def _raise_if_too_large(content: bytearray) -> None:
    if len(content) > MAX_RESPONSE_BYTES:
        raise ResponseTooLargeError(f"the answer is longer than {MAX_RESPONSE_BYTES} bytes")
