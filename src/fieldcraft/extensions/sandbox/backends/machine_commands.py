"""Commands in machines of their own, which reach one service of this machine and no network.

`command_guest.py` runs the command, and sends its connections through the streams of the machine.
"""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from pydantic import Base64Bytes, BaseModel, NonNegativeInt

from fieldcraft.extensions.sandbox.backends.base import (
    CommandError,
    CommandOutcome,
    CommandRequest,
    MachineError,
)
from fieldcraft.extensions.sandbox.backends.guest_source import make_guest_command
from fieldcraft.extensions.sandbox.backends.machine_stream import MachineStream, ReadyMessage
from fieldcraft.extensions.sandbox.backends.relay import Carry, Relay, RelayError

COMMAND_GUEST = make_guest_command(
    (
        *("execution", "command_folder", "backends.guest_processes", "backends.relay"),
        "backends.command_guest",
    )
)


class CommandReadyMessage(ReadyMessage):
    """First message of a guest that runs a command; `port` is that of the relayed service."""

    port: int


class _CommandMessage(BaseModel):
    """Message of such a guest, see `command_guest.py` and `relay.py`."""

    connection: int | None = None
    open: bool = False
    data: str = ""
    read: NonNegativeInt = 0
    lost: bool = False
    fault: str | None = None
    end: int | None = None
    output: Base64Bytes = b""
    errors: Base64Bytes = b""
    results: dict[str, Base64Bytes] = {}


async def run_in_machine(
    stream: MachineStream, port: int, request: CommandRequest, processes: int | None
) -> CommandOutcome:
    """Run a command in a machine whose guest is ready.

    `processes` is the limit on their number, if the machine has none. Raises MachineError if the
    machine is lost or sends nonsense, and CommandError.
    """
    await stream.send(_make_request(request, port, processes))
    connections = _Connections(stream, request.service_url)
    try:
        while True:
            message = await stream.receive(_CommandMessage)
            if message.connection is not None:
                connections.handle(message)
            elif message.fault is not None:
                raise CommandError(message.fault)
            elif message.end is not None:
                return CommandOutcome(
                    exit_code=message.end,
                    output=message.output,
                    error_tail=message.errors,
                    files=message.results,
                )
    finally:
        await connections.close()


def _make_request(request: CommandRequest, port: int, processes: int | None) -> dict[str, Any]:
    service_url = urlsplit(request.service_url)._replace(netloc=f"127.0.0.1:{port}").geturl()
    return {
        "line": request.line,
        "stdin": base64.b64encode(request.stdin).decode(),
        "task": base64.b64encode(request.task).decode(),
        "files": {
            name: (base64.b64encode(content).decode(), mode)
            for name, (content, mode) in request.files.items()
        },
        "variables": dict(request.make_variables(service_url)),
        "processes": processes,
        "results": list(request.results),
    }


class _Connections:
    """Connections of the command to the service, which are opened from this machine."""

    def __init__(self, stream: MachineStream, service_url: str) -> None:
        address = urlsplit(service_url)
        self._host, self._port = address.hostname, address.port
        self._relay = Relay(stream.send)
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, message: _CommandMessage) -> None:
        """Handle a message about a connection. Raises MachineError."""
        assert message.connection is not None
        try:
            if message.open:
                self._start(self._relay.connect(message.connection, self._open_streams))
            else:
                self._relay.receive(message.model_dump())
        except (RelayError, ValueError) as error:
            raise MachineError(f"The machine of the program is defective ({error}).") from error

    def _start(self, carry: Carry) -> None:
        async def run() -> None:
            with suppress(MachineError):  # the next message tells
                await carry()

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open_streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port)

    async def close(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
