"""Errors for rejected requests, in the format of OpenAI's API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

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


def make_route_handler(known_routes: str) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return the handler of requests to unknown routes; `known_routes` lists the existing ones."""

    async def reject(request: Request, error: Exception) -> Response:
        route = f"{request.method} {request.url.path}"
        message = f"The route {route} does not exist; use {known_routes}."
        return RequestRejectedError(404, message).to_response()

    return reject


def make_busy_error() -> RequestRejectedError:
    message = "All slots and the queue are full; try again in a moment."
    return RequestRejectedError(
        429, message, error_type="rate_limit_error", code="rate_limit_exceeded", retryable=True
    )


def make_shutdown_error() -> RequestRejectedError:
    message = "The server is shutting down; send the request to another one."
    return RequestRejectedError(
        503, message, error_type="server_error", code="server_stopping", retryable=True
    )


def make_failure_error(message: str, code: str, status: int = 500) -> RequestRejectedError:
    return RequestRejectedError(status, message, error_type="server_error", code=code)


def make_context_error(prompt_tokens: int, context_tokens: int) -> RequestRejectedError:
    """Return the error of a prompt without room for an answer. Clients compact a conversation, or
    stop, if they find the code of OpenAI's error or the words "prompt is too long"."""
    message = (
        f"the prompt is too long: {prompt_tokens} tokens leave none for an answer within the"
        f" context length of {context_tokens} tokens."
    )
    return RequestRejectedError(400, message, code="context_length_exceeded", param="messages")


def make_final_error(message: str) -> RequestRejectedError:
    """Return the error of a rollout in which no further request can succeed. Its status is that of
    a rollout that is over, because agents that retry other errors for minutes end after it."""
    return RequestRejectedError(404, message)
