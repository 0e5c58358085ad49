"""Requests to the project's own servers: parsing of bodies, size limits, and access checks.

A server without a token accepts requests of programs and rejects those of foreign web pages.
"""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fieldcraft.config.validation_errors import describe_validation_error

MAX_BODY_BYTES = 32 * 2**20  # maximum bytes of a body on any server; most routes accept fewer
MAX_TOTAL_BYTES = 16 * MAX_BODY_BYTES  # bytes of all bodies that a server holds concurrently
_TOO_LONG_MESSAGE = f"The body has more than {MAX_BODY_BYTES} bytes; send a shorter one.\n"
_SERVER_FULL_MESSAGE = "The server's request memory is exhausted; try again in a moment.\n"


class BodyLimitMiddleware:
    """Middleware that limits the size of bodies.

    It rejects a body above `MAX_BODY_BYTES`, or above the rest of `MAX_TOTAL_BYTES` for concurrent
    requests, before reading it. A body without a declared length is cut off at the limit.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.reserved_bytes = 0  # bytes, declared or read, of unfinished requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        content_length = Headers(scope=scope).get("content-length", "0")
        length = int(content_length) if content_length.isdecimal() else 0
        if length > MAX_BODY_BYTES:
            await PlainTextResponse(_TOO_LONG_MESSAGE, 413)(scope, receive, send)
        elif self.reserved_bytes + length > MAX_TOTAL_BYTES:
            await PlainTextResponse(_SERVER_FULL_MESSAGE, 503, {"Retry-After": "1"})(
                scope, receive, send
            )
        else:
            await self._forward(length, scope, receive, send)

    async def _forward(self, length: int, scope: Scope, receive: Receive, send: Send) -> None:
        num_read, reserved = 0, length
        self.reserved_bytes += reserved

        async def receive_counted() -> Message:
            nonlocal num_read, reserved
            message = await receive()
            num_read += len(message.get("body", b""))
            if num_read > reserved:  # a body without a declared length
                self.reserved_bytes += num_read - reserved
                reserved = num_read
            if num_read > MAX_BODY_BYTES or self.reserved_bytes > MAX_TOTAL_BYTES:
                return {"type": "http.disconnect"}
            return message

        try:
            await self.app(scope, receive_counted, send)
        finally:
            self.reserved_bytes -= reserved


class RequestBody(BaseModel):
    """JSON object of a request. A key that is null counts as absent: clients write null for omitted
    values. Other values must have the type of JSON that their key expects: "yes" is not true, and
    true is not 1."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {key: value for key, value in given.items() if value is not None}


class BodyTooLongError(Exception):
    """A request has more bytes than its server accepts; the message is a sentence."""


async def read_body_bytes(request: Request, max_bytes: int) -> bytes:
    """Read the body of a request. Raises BodyTooLongError as soon as it exceeds `max_bytes`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise BodyTooLongError(f"The body has more than {max_bytes} bytes; send a shorter one.")
    return bytes(body)


def describe_body_error(error: ValidationError) -> tuple[str, str]:
    """Return the location of the first error, "" for the whole body, and a sentence about it."""
    _, clause, place = describe_validation_error(error)
    location = ".".join(map(str, place))
    return location, f"{location or 'The body'}: {clause}."


# -- access checks -----------------------------------------------------------------------------

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_WRONG_HOST_MESSAGE = "Unknown host name: use the address that the server printed.\n"
_FOREIGN_ORIGIN_MESSAGE = (
    "Cross-origin requests from web pages are rejected: send the request from a program.\n"
)


def is_loopback(host: str) -> bool:
    """Return whether a server at this address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class SameOriginMiddleware:
    """Middleware that forwards requests of programs and rejects requests of foreign web pages.

    A browser names the page in `Origin`. A page whose host name points to the loopback address (DNS
    rebinding) is recognised by `Host`. On an address that other machines reach, the valid host
    names are unknown, so only `Origin` is checked.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        """Wrap the application. `host` is the address that the server listens on."""
        self.app = app
        self.is_local = is_loopback(host)
        self.allowed_names = LOOPBACK_NAMES | {host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = self._get_refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        responder = self.app if message is None else PlainTextResponse(message, 403)
        await responder(scope, receive, send)

    def _get_refusal(self, headers: Headers) -> str | None:
        if self.is_local and _parse_host(f"//{headers.get('host', '')}") not in self.allowed_names:
            return _WRONG_HOST_MESSAGE
        origin = headers.get("origin")
        return (
            None
            if origin is None or _parse_host(origin) in self.allowed_names
            else _FOREIGN_ORIGIN_MESSAGE
        )


def _parse_host(url: str) -> str | None:
    """Return the host of an address without its port, or None if it has no host."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
