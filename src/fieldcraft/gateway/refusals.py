"""Errors for rejected requests, in the format of OpenAI's API."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

RETRY_AFTER_SECONDS = 1  # wait before a client may try again


class RequestRejectedError(Exception):
    """A request is rejected. The message is one sentence for its sender.

    `retryable` is True if the same request may succeed later; official clients respect it.
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
    """Return the error for a request to an unknown route; `known_routes` lists the existing
    routes."""
    return RequestRejectedError(
        404, f"The route {method} {path} does not exist; use {known_routes}."
    )
