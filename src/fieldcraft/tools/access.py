"""Access checks of servers without a token: programs are accepted, foreign web pages rejected."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

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
