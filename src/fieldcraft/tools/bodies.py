"""Bodies of requests to the project's own servers, and what is wrong with one in a sentence."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError, model_validator
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fieldcraft.config.complaints import first_problem

LARGEST = 32 * 2**20  # bytes of a body that any server reads; most routes read fewer
TOGETHER = 16 * LARGEST  # bytes of all bodies that a server holds at one time
_LONG = f"The body has more than {LARGEST} bytes; send a shorter one.\n"
_FULL = "This server holds as many bytes of requests as it can; try again in a moment.\n"


class BoundedBodies:
    """Middleware that refuses bodies beyond `LARGEST`, and any while those under way fill
    `TOGETHER`, before anything of them is read. One that does not tell its length is cut off
    there."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.held = 0  # bytes, announced or read, of requests that are not answered yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = Headers(scope=scope).get("content-length", "0")
        length = int(told) if told.isdecimal() else 0
        if length > LARGEST:
            await PlainTextResponse(_LONG, 413)(scope, receive, send)
        elif self.held + length > TOGETHER:
            await PlainTextResponse(_FULL, 503, {"Retry-After": "1"})(scope, receive, send)
        else:
            await self._pass(length, scope, receive, send)

    async def _pass(self, length: int, scope: Scope, receive: Receive, send: Send) -> None:
        read, held = 0, length
        self.held += held

        async def counted() -> Message:
            nonlocal read, held
            message = await receive()
            read += len(message.get("body", b""))
            if read > held:  # of a body that told no length
                self.held += read - held
                held = read
            if read > LARGEST or self.held > TOGETHER:
                return {"type": "http.disconnect"}
            return message

        try:
            await self.app(scope, counted, send)
        finally:
            self.held -= held


class RequestBody(BaseModel):
    """An object of a request. A key that is null counts as absent: clients write null for what
    they leave out."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {key: value for key, value in given.items() if value is not None}


class BodyTooLong(Exception):
    """A request has more bytes than its server reads; the message is a sentence."""


async def body_of(request: Request, most: int) -> bytes:
    """Read the body of a request. Raises BodyTooLong beyond `most` bytes, and reads no further."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise BodyTooLong(f"The body has more than {most} bytes; send a shorter one.")
    return bytes(body)


def complaint(error: ValidationError) -> tuple[str, str]:
    """Return the place of what is wrong first, "" for the whole body, and a sentence about it."""
    _, clause, place = first_problem(error)
    where = ".".join(map(str, place))
    return where, f"{where or 'The body'}: {clause}."
