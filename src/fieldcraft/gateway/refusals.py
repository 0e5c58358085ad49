"""Refusals of requests, in the form in which OpenAI's clients read them."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

RETRY_AFTER_SECONDS = 1  # after which a client may try again


class RequestRejectedError(Exception):
    """A request that is not answered. The message is one sentence for whoever sent it.

    `retryable` says whether the same request may succeed later; official clients obey it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        error_type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retryable = retryable
        self.error: dict[str, Any] = {
            "message": message,
            "type": error_type,
            "param": param,
            "code": code,
        }

    def to_response(self) -> JSONResponse:
        headers = {"x-should-retry": "true" if self.retryable else "false"}
        if self.retryable:
            headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse({"error": self.error}, self.status, headers)


def make_route_error(method: str, path: str, known_routes: str) -> RequestRejectedError:
    """Return the refusal of a request to a route that a server lacks; `known_routes` are those that
    it has."""
    return RequestRejectedError(
        404, f"The route {method} {path} does not exist; use {known_routes}."
    )
