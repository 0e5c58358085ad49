"""Refusals of a server that is busy, stops, or has an agent that fails."""

from __future__ import annotations

from fieldcraft.gateway.refusals import Refused


def busy() -> Refused:
    message = "All places and the queue are full; try again in a moment."
    return Refused(429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry=True)


def closing() -> Refused:
    message = "The server is being stopped; ask another one."
    return Refused(503, message, kind="server_error", code="server_stopping", retry=True)


def failed(message: str, code: str, status: int = 500) -> Refused:
    return Refused(status, message, kind="server_error", code=code)
