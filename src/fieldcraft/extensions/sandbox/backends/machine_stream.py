"""Messages to and from the guest of a machine: lines of JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fieldcraft.extensions.sandbox.backends.base import Machine, MachineError

MAX_LINE_BYTES = 64 * 2**20
MessageT = TypeVar("MessageT", bound=BaseModel)


class ReadyMessage(BaseModel):
    """First message of a guest."""

    ready: str  # version of Python


class MachineStream:
    """Stream of messages, which may be sent from several tasks."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._received = bytearray()
        self._lock = asyncio.Lock()

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises MachineError."""
        async with self._lock:
            await self._machine.send(json.dumps(message).encode() + b"\n")

    async def receive_first(self, kind: type[MessageT]) -> MessageT:
        """Return the first message. Raises MachineError if the machine has no usable Python."""
        while True:  # a shell may print something before
            line = await self._read_line()
            if line.startswith(b"{"):
                return _parse(line, kind)

    async def receive(self, kind: type[MessageT]) -> MessageT:
        """Return the next message. Raises MachineError, also for nonsense."""
        return _parse(await self._read_line(), kind)

    async def keep_alive(self, seconds: float) -> None:
        """Keep the machine for these seconds. Raises MachineError."""
        await self._machine.keep_alive(seconds)

    async def _read_line(self) -> bytes:
        while (end := self._received.find(b"\n")) < 0:
            data = await self._machine.receive()
            if not data:
                raise MachineError("The machine of the program ended before the program.")
            self._received += data
            if len(self._received) > MAX_LINE_BYTES:
                raise MachineError("The machine of the program sends lines without an end.")
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line


def _parse(line: bytes, kind: type[MessageT]) -> MessageT:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        raise MachineError(
            "The machine of the program sends something else than results."
        ) from error
