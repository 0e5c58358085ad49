"""Errors of a server that is busy, is shutting down, or has a failing agent."""

from __future__ import annotations

from fieldcraft.gateway.refusals import RequestRejectedError


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
