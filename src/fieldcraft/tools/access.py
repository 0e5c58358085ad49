"""Access to a server that wants no token: programs, and no page from elsewhere."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_NAME = "This server is not called by that name: ask it by the address that it printed.\n"
_ORIGIN = "This server answers no pages from elsewhere: ask it with a program of your own.\n"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server at this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class OwnRequests:
    """Passes on what programs ask, and refuses what a page from elsewhere does.

    A browser names such a page in `Origin`. One that has given itself a name which points to the
    loopback (DNS rebinding) shows in `Host`; a server that others reach has names nobody knows
    here, and there only the first counts.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        """Take the application, and `host`, the address that the server listens on."""
        self.app = app
        self.local = is_loopback(host)
        self.names = LOCAL | {host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        told = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        answer = self.app if told is None else PlainTextResponse(told, 403)
        await answer(scope, receive, send)

    def _refusal(self, headers: Headers) -> str | None:
        if self.local and _host(f"//{headers.get('host', '')}") not in self.names:
            return _NAME
        origin = headers.get("origin")
        return None if origin is None or _host(origin) in self.names else _ORIGIN


def _host(url: str) -> str | None:
    """Return the host of an address without its port; None where there is none."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
