"""HTTP clients with limits on time and size, for servers that may be slow, endless or broken.

Responses are decompressed in small chunks, so that memory stays bounded: httpx decompresses each
received chunk as a whole, and a chunk of 64 KiB can expand to 64 MiB.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import httpx
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_before_delay,
    wait_exponential,
)

from fieldcraft.concurrency import LoopValues
from fieldcraft.config.url_secrets import mask_secrets, require_no_secret
from fieldcraft.tools.addresses import MAX_PORT
from fieldcraft.types import UserError

# Web sites in this process, by their addresses, as `mounts` of httpx.
InProcessSites = Mapping[str, httpx.AsyncBaseTransport]
NO_SITES: InProcessSites = MappingProxyType({})
MIN_WAIT_SECONDS, MAX_WAIT_SECONDS = 0.2, 5.0  # before another attempt; doubled after each
MAX_RESPONSE_BYTES = 8 * 2**20  # of a response; a hundred long passages take less than one MiB
_DOWN_STATUSES = (502, 503)  # of a proxy without a server, and of a server without capacity
# Headers of a response that is forwarded decompressed. `content-length` is the compressed size.
_TRANSFER_HEADERS = ("content-encoding", "content-length", "transfer-encoding")
# asyncio may stop its loop before it has closed a generator without references.
_loop_closers: LoopValues[list[AsyncGenerator[None]]] = LoopValues(list)


def make_attempts(
    retries: int,
    restart_seconds: float = 0.0,
    repeatable_errors: tuple[type[httpx.TransportError], ...] = (httpx.TransportError,),
) -> AsyncRetrying:
    """Return attempts of a request, which is repeated at most `retries` times if the server is busy
    or the request fails with a repeatable error, and for `restart_seconds` if the server is down,
    for example because it is restarted. The last error is raised."""
    return AsyncRetrying(
        stop=_stop_retrying(retries, restart_seconds),
        wait=wait_exponential(MIN_WAIT_SECONDS, max=MAX_WAIT_SECONDS),
        retry=retry_if_exception(lambda e: is_busy(e) or isinstance(e, repeatable_errors)),
        reraise=True,
    )


def is_busy(error: BaseException) -> bool:
    """Return whether a server answered that another attempt may succeed."""
    if not isinstance(error, httpx.HTTPStatusError):
        return False
    status = error.response.status_code
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def require_connectable(url: httpx.URL) -> httpx.URL:
    """Return a URL. Raises httpx.InvalidURL for a host or a port that httpx itself refuses only
    later, with errors of other libraries."""
    try:
        _ = url.host  # decoded from punycode
    except UnicodeError as error:
        raise httpx.InvalidURL(f"Invalid host: {url.raw_host.decode()!r}") from error
    if url.port is not None and url.port > MAX_PORT:
        raise httpx.InvalidURL(f"Invalid port: {url.port}")
    return url


def read_address(text: str) -> httpx.URL:
    """Return the URL that a text is, and an empty one, without a host, if it is none."""
    try:
        return require_connectable(httpx.URL(text))
    except httpx.InvalidURL:
        return httpx.URL("")


def require_server_url(key: str, url: str) -> None:
    """Raise UserError if the value of a key is not the URL of a server, or contains a secret."""
    advice = "write http://HOST:PORT"
    require_no_secret(key, url)  # first, because an error may contain a part of a password
    try:
        address = require_connectable(httpx.URL(url))
    except httpx.InvalidURL as error:
        raise UserError(f"'{mask_secrets(url)}' is not a url ({error}); {advice}.") from error
    if address.scheme not in ("http", "https") or not address.host:
        raise UserError(f"'{mask_secrets(url)}' is not a url of a server; {advice}.")


def read_key(variable: str) -> str:
    """Return the key in an environment variable, "" if it is not set, without the white space that
    a file adds around it. Raises UserError as `require_sendable` does."""
    key = os.environ.get(variable, "").strip()
    require_sendable(f"the environment variable {variable}", key)
    return key


def require_sendable(source: str, secret: str) -> None:
    """Raise UserError for a key or a token that no header of a request can contain."""
    if not (secret.isascii() and secret.isprintable()):
        raise UserError(
            f"{source} contains a line break or a character that is not ASCII, which no request"
            " can send: set it to the key or the token alone."
        )


async def _close_with_loop(client: httpx.AsyncClient) -> None:
    """Close a client when asyncio ends the running loop, even if it is still referenced."""
    closer = _make_closer(client)
    _loop_closers.get().append(closer)
    await anext(closer)


async def _make_closer(client: httpx.AsyncClient) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await client.aclose()


def _stop_retrying(retries: int, restart_seconds: float) -> Callable[[RetryCallState], bool]:
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


class LoopHttpClient:
    """Client for any event loop: connections of a closed loop cannot be used, so each loop gets a
    `LimitedHttpClient` with these arguments, which is closed with the loop."""

    def __init__(self, timeout_seconds: float, **settings: Any) -> None:
        self._clients = LoopValues(partial(LimitedHttpClient, timeout_seconds, **settings))

    async def get(self) -> LimitedHttpClient:
        """Return the client of the running loop."""
        if (client := self._clients.find()) is None:
            client = self._clients.get()
            await _close_with_loop(client)
        return client

    async def close(self) -> None:
        """Close the connections in the running loop; the next request opens new ones."""
        if (client := self._clients.pop()) is not None:
            await client.aclose()


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


# -- decompression -----------------------------------------------------------------------------

ACCEPTED_ENCODING = "gzip"  # encoding requested by clients; httpx would request all installed ones
_CHUNK_BYTES = 2**16  # bytes per decompressed chunk
_GZIP = 16 + zlib.MAX_WBITS


async def decompress_response(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the body of a streamed response in small chunks. Bytes after a compressed stream are
    ignored.

    Raises:
        httpx.DecodingError: the encoding was not requested, or the stream is damaged or truncated.
        httpx.RequestError: any other failure.
    """
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        async for chunk in response.aiter_raw():
            yield chunk
        return
    if encoding not in ("gzip", "x-gzip"):
        raise httpx.DecodingError(f"its encoding was not requested ({encoding[:20]})")
    decompressor = zlib.decompressobj(_GZIP)
    has_data = False
    async for chunk in response.aiter_raw():
        has_data = True
        for part in _decompress_chunks(decompressor, chunk):
            yield part
        if decompressor.eof:
            return
    if has_data:  # a response without a body may have the header, too
        raise httpx.DecodingError("its compressed body is truncated")


def _decompress_chunks(decompressor: zlib._Decompress, compressed: bytes) -> Iterator[bytes]:
    while compressed and not decompressor.eof:
        try:
            yield decompressor.decompress(compressed, _CHUNK_BYTES)
        except zlib.error as error:
            raise httpx.DecodingError("it is not compressed as its header states") from error
        compressed = decompressor.unconsumed_tail
