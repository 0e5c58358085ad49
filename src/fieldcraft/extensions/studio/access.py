"""Access control of the page: local access without a token, remote access with it."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE_NAME = "fieldcraft_view"
TOKEN_REQUIRED_MESSAGE = (
    "This page needs its token: open the address that 'fieldcraft studio' printed, which ends in"
    " ?token=...\n"
)
READ_ONLY_MESSAGE = "This page is read-only: use GET.\n"
CROSS_ORIGIN_MESSAGE = "Only the page itself may send this request.\n"
# No external resources, no inline scripts or styles, and no frames.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class AccessGuard:
    """Middleware that checks access. It allows writes only to `writable_paths` and only by the page
    itself, adds `SECURITY_HEADERS` to every response and, if set, requires the token.

    The token is sent once as `?token=`, and as a cookie afterwards; a program may send it as
    `Authorization: Bearer`.
    """

    def __init__(
        self, app: ASGIApp, token: str | None, writable_paths: Collection[str] = ()
    ) -> None:
        self.app = app
        self.token = token
        self.writable_paths = writable_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        answer = self._check_access(Request(scope)) or self.app
        await answer(scope, receive, send_with_headers)

    def _check_access(self, request: Request) -> Response | None:
        """Return the error response, or None if access is allowed."""
        if request.method not in ("GET", "HEAD"):
            if request.url.path not in self.writable_paths:
                return PlainTextResponse(READ_ONLY_MESSAGE, 405)
            # A foreign page can send a form here, but browsers state its origin.
            if urlsplit(request.headers.get("origin", "")).netloc != request.headers.get("host"):
                return PlainTextResponse(CROSS_ORIGIN_MESSAGE, 403)
        if self.token is None:
            return None
        token = request.query_params.get("token", "")
        if self._token_matches(token):
            rest = request.url.remove_query_params("token").query
            answer = RedirectResponse(f"/?{rest}".rstrip("?"), 303)
            answer.set_cookie(COOKIE_NAME, token, httponly=True, samesite="strict")
            return answer
        _, _, bearer = request.headers.get("authorization", "").partition("Bearer ")
        if self._token_matches(bearer) or self._token_matches(request.cookies.get(COOKIE_NAME, "")):
            return None
        return PlainTextResponse(TOKEN_REQUIRED_MESSAGE, 401)

    def _token_matches(self, token: str) -> bool:
        assert self.token is not None
        return secrets.compare_digest(token.encode(), self.token.encode())
