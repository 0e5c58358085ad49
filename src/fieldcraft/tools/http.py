"""HTTP clients with limits on time and size, for servers that may be slow, endless or broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import httpx
from tenacity import RetryCallState, stop_before_delay

from fieldcraft.tools.decompression import ACCEPTED_ENCODING, decompress_response

# Web sites in this process, by their addresses, as `mounts` of httpx.
InProcessSites = Mapping[str, httpx.AsyncBaseTransport]
NO_SITES: InProcessSites = MappingProxyType({})
MAX_RESPONSE_BYTES = 8 * 2**20  # of a response; a hundred long passages take less than one MiB
_DOWN_STATUSES = (502, 503)  # of a proxy without a server, and of a server without capacity
# Headers of a response that is forwarded decompressed. `content-length` is the compressed size.
_TRANSFER_HEADERS = ("content-encoding", "content-length", "transfer-encoding")
# asyncio may stop its loop before it has closed a generator without references.
_loop_closers: WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncGenerator[None]]] = (
    WeakKeyDictionary()
)


async def close_with_loop(client: httpx.AsyncClient) -> None:
    """Close a client when asyncio ends the running loop, even if it is still referenced."""
    closer = _make_closer(client)
    _loop_closers.setdefault(asyncio.get_running_loop(), []).append(closer)
    await anext(closer)


async def _make_closer(client: httpx.AsyncClient) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await client.aclose()


def stop_retrying(retries: int, restart_seconds: float) -> Callable[[RetryCallState], bool]:
    """Return a condition of tenacity that ends the attempts of a request after `retries` more. A
    server that is down, for example because it is restarted, is tried for `restart_seconds`."""
    ends_restart = stop_before_delay(restart_seconds)

    def stop(state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome else None
        is_down = error is not None and _is_server_down(error)
        return state.attempt_number > retries and (not is_down or ends_restart(state))

    return stop


def _is_server_down(error: BaseException) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _DOWN_STATUSES
    return isinstance(error, httpx.ConnectError)


class ResponseTooLargeError(httpx.RequestError):
    """A response is longer than MAX_RESPONSE_BYTES; the rest of it was not read."""


class LimitedHttpClient(httpx.AsyncClient):
    """Client whose requests receive a complete response within `timeout_seconds`, or fail.

    httpx itself limits only the time between two chunks of a response, so a server that sends one
    byte per second would never time out. Waiting for a free connection counts too, so users of a
    shared client must limit the number of concurrent requests.
    """

    def __init__(self, timeout_seconds: float, **settings: Any) -> None:
        super().__init__(timeout=httpx.Timeout(timeout_seconds, pool=None), **settings)
        self.headers["accept-encoding"] = ACCEPTED_ENCODING
        self.timeout_seconds = timeout_seconds

    async def send(
        self, request: httpx.Request, *, stream: bool = False, **options: Any
    ) -> httpx.Response:
        """Send a request and return the complete response, regardless of `stream`.

        Raises:
            httpx.ReadTimeout: the response was not complete in time.
            ResponseTooLargeError: the response is too long.
            httpx.RequestError: any other failure.
        """
        return await self._send_with_timeout(request, _read_fully, **options)

    async def stream_lines(
        self, method: str, url: str, on_line: Callable[[str], None], **content: Any
    ) -> httpx.Response:
        """Send a request, call `on_line` with each line as soon as it arrives, and return the
        response without its content.

        Raises the errors of `send`.
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
            raise httpx.ReadTimeout("the response took too long", request=request) from error
        except httpx.InvalidURL as error:  # httpx parses `location` even without redirects
            message = "the response redirects to an invalid address"
            raise httpx.RemoteProtocolError(message, request=request) from error


async def _read_fully(response: httpx.Response) -> httpx.Response:
    """Return the response with its content, which is read and decompressed chunk by chunk."""
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
    """Yield the lines of the response, without line ends."""
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
        raise ResponseTooLargeError(f"the response is longer than {MAX_RESPONSE_BYTES} bytes")
