"""Access to the page: on the loopback this machine, beyond it whoever has the token."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

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
ELSEWHERE = "Only the page itself may ask for this.\n"
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


class Guard:
    """Lets nobody write but to the paths `writable`, and there only the page itself. Adds `HEADERS`
    to every answer and, with a token, lets nobody in without it. The token comes as `?token=` once,
    and is a cookie from then on; a program may send it as `Authorization: Bearer`."""

    def __init__(self, app: ASGIApp, token: str | None, writable: Collection[str] = ()) -> None:
        self.app = app
        self.token = token
        self.writable = writable

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
        """Return the answer in place of the page, None where the page may be read."""
        if request.method not in ("GET", "HEAD"):
            if request.url.path not in self.writable:
                return PlainTextResponse(READ_ONLY, 405)
            # A page from elsewhere can send a form here, but browsers say where it came from.
            if urlsplit(request.headers.get("origin", "")).netloc != request.headers.get("host"):
                return PlainTextResponse(ELSEWHERE, 403)
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
