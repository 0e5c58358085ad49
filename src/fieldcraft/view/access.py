"""Who may read the page: on the loopback this machine, beyond it whoever has the token."""

from __future__ import annotations

import ipaddress
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "fieldcraft_view"
NO_TOKEN = (
    "This page needs its token: open the address that 'fieldcraft view' printed, which ends in"
    " ?token=...\n"
)
READ_ONLY = "This page only reads: ask with GET.\n"
# Nothing from elsewhere, no program and no style that stands in the page's text, and no frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server at this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Lets nobody write, adds `HEADERS` to every answer and, with a token, lets nobody in without
    it. The token comes as `?token=` once, and is a cookie from then on; a program may send it as
    `Authorization: Bearer`."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._answer(Request(scope)) or self.app
        await answer(scope, receive, guarded)

    def _answer(self, request: Request) -> Response | None:
        """What to answer in place of the page."""
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse(READ_ONLY, 405)
        if self.token is None:
            return None
        asked = request.query_params.get("token", "")
        if self._fits(asked):
            rest = request.url.remove_query_params("token").query
            answer = RedirectResponse(f"/?{rest}".rstrip("?"), 303)
            answer.set_cookie(COOKIE, asked, httponly=True, samesite="strict")
            return answer
        _, _, bearer = request.headers.get("authorization", "").partition("Bearer ")
        if self._fits(bearer) or self._fits(request.cookies.get(COOKIE, "")):
            return None
        return PlainTextResponse(NO_TOKEN, 401)

    def _fits(self, given: str) -> bool:
        assert self.token is not None
        return secrets.compare_digest(given.encode(), self.token.encode())


def hosts_of(host: str, token: str | None) -> list[str]:
    """The names by which browsers may call a server. Without a token it is only those of this
    machine: a page from elsewhere could give itself a name that points here (DNS rebinding), but it
    has no token."""
    return ["*"] if token is not None else ["localhost", "127.0.0.1", "[::1]", host]
