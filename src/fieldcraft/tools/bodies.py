"""Bodies of requests to the project's own servers, and what is wrong with one in a sentence."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError, model_validator
from starlette.requests import Request

from fieldcraft.config.complaints import first_problem


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
    """The body of a request. Raises BodyTooLong beyond `most` bytes, and reads no further."""
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
