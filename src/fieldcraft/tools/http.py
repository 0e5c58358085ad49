"""Requests to servers that may be slow, endless or broken: limits of time and of size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import httpx

from fieldcraft.tools.unpacking import ACCEPTED, unpacked

# Web sites that are in this process, by their addresses, as `mounts` of httpx.
Sites = Mapping[str, httpx.AsyncBaseTransport]
NO_SITES: Sites = MappingProxyType({})
MOST_BYTES = 8 * 2**20  # of an answer; a hundred long passages have less than one MiB
# Of an answer that is sent unpacked. `content-length` is that of the packed one.
_OF_TRANSFER = ("content-encoding", "content-length", "transfer-encoding")
# asyncio may stop its loop before it has closed a generator that nobody holds.
_lives: WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncGenerator[None]]] = (
    WeakKeyDictionary()
)


async def close_with_the_loop(client: httpx.AsyncClient) -> None:
    """Close a client when asyncio ends the running loop, whether or not somebody still holds it."""
    life = _life(client)
    _lives.setdefault(asyncio.get_running_loop(), []).append(life)
    await anext(life)


async def _life(client: httpx.AsyncClient) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await client.aclose()


class TooLarge(httpx.RequestError):
    """An answer is longer than MOST_BYTES; the rest of it was not read."""


class LimitedClient(httpx.AsyncClient):
    """A client each of whose requests is answered whole within `seconds`, or fails.

    httpx itself limits only the time between two pieces of an answer, so a server that sends a byte
    a second would never be given up. Waiting for a free connection counts too, so whoever shares a
    client limits how many requests are on their way.
    """

    def __init__(self, seconds: float, **settings: Any) -> None:
        super().__init__(timeout=httpx.Timeout(seconds, pool=None), **settings)
        self.headers["accept-encoding"] = ACCEPTED
        self.seconds = seconds

    async def send(
        self, request: httpx.Request, *, stream: bool = False, **how: Any
    ) -> httpx.Response:
        """Send a request and return the whole answer, whether or not `stream` asks for it in
        pieces.

        Raises:
            httpx.ReadTimeout: it was not there in time.
            TooLarge: it is too long.
            httpx.RequestError: any other failure.
        """
        return await self._limited(request, _whole, **how)

    async def follow(
        self, method: str, url: str, hear: Callable[[str], None], **content: Any
    ) -> httpx.Response:
        """Send a request and return the answer, without its content: `hear` is called with each
        line as soon as it is there.

        Raises what `send` does.
        """

        async def read(response: httpx.Response) -> httpx.Response:
            if response.is_error:
                return await _whole(response)
            async for line in _lines(response):
                hear(line)
            return response

        return await self._limited(self.build_request(method, url, **content), read)

    async def _limited(
        self,
        request: httpx.Request,
        read: Callable[[httpx.Response], Awaitable[httpx.Response]],
        **how: Any,
    ) -> httpx.Response:
        limit = asyncio.timeout(self.seconds)
        try:
            async with limit:
                response = await super().send(request, stream=True, **how)
                try:
                    return await read(response)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise httpx.ReadTimeout("the answer took too long", request=request) from error
        except httpx.InvalidURL as error:  # httpx reads `location` even where it does not follow
            told = "the answer redirects to no address"
            raise httpx.RemoteProtocolError(told, request=request) from error


async def _whole(response: httpx.Response) -> httpx.Response:
    """Return the response with its content, which is read piece by piece, as it is unpacked."""
    content = bytearray()
    async for piece in unpacked(response):
        content += piece
        _limit(content)
    headers = [(k, v) for k, v in response.headers.multi_items() if k not in _OF_TRANSFER]
    return httpx.Response(
        response.status_code,
        headers=headers,
        content=bytes(content),
        request=response.request,
        extensions=response.extensions,
        history=response.history,
    )


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Yield the lines of the response, without their ends."""
    line = bytearray()
    async for piece in unpacked(response):
        *whole, rest = piece.split(b"\n")
        for end in whole:
            yield (line + end).decode(errors="replace").removesuffix("\r")
            line.clear()
        line += rest
        _limit(line)
    if line:
        yield line.decode(errors="replace")


def _limit(content: bytearray) -> None:
    if len(content) > MOST_BYTES:
        raise TooLarge(f"the answer is longer than {MOST_BYTES} bytes")
