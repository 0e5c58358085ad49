"""Machines of E2B, by its own library.

The library reads the environment variables of E2B, such as E2B_DOMAIN for a server of one's own.
"""

from __future__ import annotations

import asyncio
import math
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import e2b
import httpx

from fieldcraft.concurrency import await_external, run_to_the_end
from fieldcraft.config.names import get_first_line
from fieldcraft.extensions.sandbox.backends.base import MachineError
from fieldcraft.extensions.sandbox.backends.machine_stream import MAX_LINE_BYTES
from fieldcraft.extensions.sandbox.limits import MachineLimits
from fieldcraft.records.waits import log_line

_START_SECONDS = 60  # added to the lifetime of a sandbox, which includes its start
_MAX_INPUT_BYTES = 2**19  # of one request
_ERRORS = (
    *(e2b.SandboxException, e2b.AuthenticationException, e2b.ServiceBusyException),
    *(httpx.HTTPError, OSError),
)


class E2bHost:
    """`base.MachineHost` whose machines are sandboxes of E2B."""

    enforced_limits = frozenset[str]()

    def __init__(self, template: str, api_key: str, internet: bool) -> None:
        self._template = template
        self._api_key = api_key
        self._internet = internet

    @asynccontextmanager
    async def open_machine(
        self, command: Sequence[str], limits: MachineLimits, lifetime_seconds: float
    ) -> AsyncIterator[E2bMachine]:
        """Run a command in a new sandbox of E2B, which is killed at the end of the context. If this
        process is killed, E2B ends it after its lifetime."""
        machine = E2bMachine(
            asyncio.create_task(
                e2b.AsyncSandbox.create(
                    template=self._template,
                    timeout=_round_lifetime(lifetime_seconds),
                    allow_internet_access=self._internet,
                    metadata={"client": "fieldcraft"},
                    api_key=self._api_key,
                )
            )
        )
        try:
            await machine.start(command)
            yield machine
        finally:
            await run_to_the_end(machine.close())


class E2bMachine:
    """`base.Machine`: a command in a sandbox of E2B."""

    def __init__(self, creation: asyncio.Task[e2b.AsyncSandbox]) -> None:
        """Create the machine, whose sandbox is being created."""
        self._creation = creation
        self._output: asyncio.Queue[bytes] = asyncio.Queue()
        self._unread_bytes = 0  # of the output; a session reads it only during its calls
        self._command: Any = None
        self._end: asyncio.Task[None] | None = None

    async def start(self, command: Sequence[str]) -> None:
        """Start the command when there is a sandbox. Raises MachineError."""
        try:
            # E2B would keep the sandbox of a cancelled request, so `close` waits for it.
            sandbox = await asyncio.shield(self._creation)
        except _ERRORS as error:
            raise MachineError(f"E2B starts no sandbox ({get_first_line(error)}).") from error
        try:
            self._command = await await_external(
                sandbox.commands.run(
                    f"exec {shlex.join(command)}",
                    background=True,
                    stdin=True,
                    timeout=0,  # the sandbox's own lifetime limits it
                    on_stdout=self._add_output,
                    retain_output=False,
                )
            )
        except _ERRORS as error:
            raise MachineError(f"E2B starts no command ({get_first_line(error)}).") from error
        self._end = asyncio.create_task(self._wait())

    def _add_output(self, text: str) -> None:
        """Keep output until it is read. Output beyond a limit is dropped, and `receive` fails."""
        if self._unread_bytes <= MAX_LINE_BYTES:
            data = text.encode()
            self._unread_bytes += len(data)
            self._output.put_nowait(data)

    async def _wait(self) -> None:
        """Wait for the end of the command. Raises MachineError if it was lost."""
        try:
            await self._command.wait()
        except e2b.CommandExitException as error:
            raise MachineError(
                f"The interpreter in E2B ended with status {error.exit_code}."
            ) from error
        except _ERRORS as error:
            raise MachineError(f"E2B lost the sandbox ({get_first_line(error)}).") from error

    async def send(self, data: bytes) -> None:
        try:
            for start in range(0, len(data), _MAX_INPUT_BYTES):
                await await_external(
                    self._command.send_stdin(data[start : start + _MAX_INPUT_BYTES])
                )
        except _ERRORS as error:
            raise MachineError(f"E2B lost the sandbox ({get_first_line(error)}).") from error

    async def receive(self) -> bytes:
        assert self._end is not None
        if self._unread_bytes > MAX_LINE_BYTES:
            raise MachineError("The machine of the program sends too much output.")
        if self._output.empty():
            next_output = asyncio.create_task(self._output.get())
            try:
                await asyncio.wait((next_output, self._end), return_when=asyncio.FIRST_COMPLETED)
                if next_output.done():
                    return self._take(next_output.result())
            finally:
                next_output.cancel()
            await self._end
            return b""
        return self._take(self._output.get_nowait())

    def _take(self, data: bytes) -> bytes:
        self._unread_bytes -= len(data)
        return data

    async def keep_alive(self, lifetime_seconds: float) -> None:
        try:
            await await_external(
                self._creation.result().set_timeout(_round_lifetime(lifetime_seconds))
            )
        except _ERRORS as error:
            raise MachineError(f"E2B lost the sandbox ({get_first_line(error)}).") from error

    async def close(self) -> None:
        """Kill the sandbox. One that cannot be reached ends after its lifetime."""
        try:
            sandbox = await self._creation
        except _ERRORS:  # `start` told
            return
        try:
            await sandbox.kill()
        except _ERRORS as error:
            log_line(f"a sandbox of E2B ends only after its lifetime ({get_first_line(error)})")
        if self._end is not None:
            await self._command.disconnect()
            await asyncio.gather(self._end, return_exceptions=True)  # its error was told before


def _round_lifetime(seconds: float) -> int:
    return math.ceil(seconds) + _START_SECONDS
