"""Refusals of requests, in the form in which OpenAI's clients read them."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

BUSY_SECONDS = 1  # after which a client may try again


class Refused(Exception):
    """A request that is not answered. The message is one sentence for whoever sent it.

    `retry` says whether the same request may succeed later; official clients obey it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry = retry
        self.error: dict[str, Any] = {
            "message": message,
            "type": kind,
            "param": param,
            "code": code,
        }

    def response(self) -> JSONResponse:
        headers = {"x-should-retry": "true" if self.retry else "false"}
        if self.retry:
            headers["Retry-After"] = str(BUSY_SECONDS)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse({"error": self.error}, self.status, headers)


def no_route(method: str, path: str, answered: str) -> Refused:
    """Return the refusal of a request to a route that a server lacks; `answered` are those that it
    has."""
    return Refused(404, f"There is no route {method} {path} here; ask {answered}.")
