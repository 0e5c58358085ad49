"""Programs in machines of their own, whatever engine or service starts these.

Each run and each session has a new machine, in which `guest.py` runs the programs, and so has each
command (`machine_commands.py`).
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self, TypeVar

from pydantic import Base64Bytes, BaseModel

from fieldcraft.concurrency import ConcurrencyLimiter
from fieldcraft.extensions.sandbox.backends.base import (
    CommandError,
    CommandOutcome,
    CommandRequest,
    MachineError,
    MachineHost,
)
from fieldcraft.extensions.sandbox.backends.guest_source import make_guest_command
from fieldcraft.extensions.sandbox.backends.machine_commands import (
    COMMAND_GUEST,
    CommandReadyMessage,
    run_in_machine,
)
from fieldcraft.extensions.sandbox.backends.machine_stream import MachineStream, ReadyMessage
from fieldcraft.extensions.sandbox.limits import (
    MachineLimits,
    OutputBuffer,
    ProgramResult,
    ProgramStatus,
    SandboxLimits,
    truncate_output,
)
from fieldcraft.records.waits import report_wait
from fieldcraft.tools.base import Isolation
from fieldcraft.types import ToolUnavailableError, UserError

START_TIMEOUT_SECONDS = 120.0  # from the request for a machine until its interpreter is ready
ANSWER_TIMEOUT_SECONDS = 15.0  # after the time limit of a program, which the guest enforces
IDLE_SECONDS = 1800.0  # how long a machine waits for the next call of a session
_FLOOD_FACTOR = 256  # times the retained output, as in the own sandbox
# As in the own sandbox: a program prints a set in the same order each time, libraries use one
# thread, and threads reserve no address space.
_ENVIRONMENT = (
    "env",
    "PYTHONHASHSEED=0",
    "OMP_NUM_THREADS=1",
    "OPENBLAS_NUM_THREADS=1",
    "MALLOC_ARENA_MAX=1",
)
ReadyT = TypeVar("ReadyT", bound=ReadyMessage)
_GUEST = make_guest_command(("execution", "backends.guest_processes", "backends.guest"))


class _GuestMessage(BaseModel):
    """Message of a guest, see `guest.py`."""

    output: Literal[1, 2] | None = None
    data: Base64Bytes = b""
    end: int | None = None
    status: ProgramStatus | None = None
    value: str | None = None
    alive: bool = False


class _MachineInterpreter:
    """Interpreter in a machine, seen from the host."""

    def __init__(self, stream: MachineStream, limits: SandboxLimits, processes: int | None) -> None:
        """Create the interpreter. `processes` is their number if the machine does not limit it."""
        self.stream = stream
        self._limits = limits
        self._processes = processes
        self.is_alive = True  # and can run another program

    async def run(
        self, code: str, stdin: str, files: Mapping[str, bytes], single_use: bool
    ) -> ProgramResult:
        """Run a program. Raises MachineError if the machine is lost or sends nonsense."""
        started = time.perf_counter()
        request = self._make_request(code, stdin, files, single_use)
        await self.stream.send(request)
        limit = self._limits.output_bytes
        stdout, stderr = OutputBuffer(limit), OutputBuffer(limit)
        status, exit_code, value = ProgramStatus.OUTPUT, None, None
        self.is_alive = False
        while max(stdout.total_bytes, stderr.total_bytes) <= limit * _FLOOD_FACTOR:
            message = await self.stream.receive(_GuestMessage)
            if message.output is not None:
                (stdout if message.output == 1 else stderr).add(message.data)
            elif message.status is not None:
                status, exit_code, value = message.status, message.end, message.value
                self.is_alive = message.alive
                break
        return ProgramResult(
            status,
            exit_code,
            stdout.render(),
            stderr.render(),
            None if value is None else truncate_output(value, limit),
            time.perf_counter() - started,
            stdout.omitted_bytes + stderr.omitted_bytes,
        )

    def _make_request(
        self, code: str, stdin: str, files: Mapping[str, bytes], single_use: bool
    ) -> dict[str, object]:
        limits = self._limits
        return {
            "code": code,
            "stdin": stdin,
            "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
            "single_use": single_use,
            "wall_seconds": limits.wall_seconds,
            "cpu_seconds": limits.cpu_seconds,
            "memory_mb": limits.memory_mb,
            "processes": self._processes,
            "file_mb": limits.file_mb,
        }


class MachineBackend:
    """`base.SessionBackend` that starts a machine for each run and each session."""

    def __init__(
        self, host: MachineHost, limits: SandboxLimits, max_concurrent: int, isolation: Isolation
    ) -> None:
        """Create the backend. At most `max_concurrent` machines exist at a time.

        Raises UserError if `max_concurrent` is below 1.
        """
        if max_concurrent < 1:
            raise UserError(
                f"the setting max_concurrent of a sandbox must be at least 1, not {max_concurrent}."
            )
        self.host = host
        self.max_concurrent = max_concurrent
        self.command_limits = frozenset({*host.enforced_limits, "processes"})
        self._limits = limits
        self._limiter = ConcurrencyLimiter(max_concurrent)
        self._isolation = isolation

    def describe_isolation(self) -> Isolation:
        return self._isolation

    async def run(
        self, code: str, stdin: str = "", files: Mapping[str, bytes] | None = None
    ) -> ProgramResult:
        """Run a program in a new machine. Raises ToolUnavailableError if there is none."""
        seconds = self._limits.wall_seconds + ANSWER_TIMEOUT_SECONDS
        try:
            async with self._open_interpreter(seconds) as interpreter, asyncio.timeout(seconds):
                return await interpreter.run(code, stdin, files or {}, single_use=True)
        except MachineError as error:
            raise ToolUnavailableError(str(error)) from error
        except TimeoutError as error:
            raise ToolUnavailableError(_describe_silence(seconds)) from error

    def open_session(self, *, files: Mapping[str, bytes] | None = None) -> MachineSession:
        """Open an interpreter that several calls share, with `files` in its working folder. Its
        machine starts with the first call."""
        return MachineSession(self._open_interpreter, self._limits.wall_seconds, files or {})

    async def run_command(self, request: CommandRequest) -> CommandOutcome:
        """Run a command in a new machine, see `base.CommandBackend`."""
        processes = self._get_unenforced_processes(request.limits)
        opened = self._open_machine(
            COMMAND_GUEST, request.limits, request.seconds, CommandReadyMessage
        )
        try:
            async with opened as (stream, ready):
                return await run_in_machine(stream, ready.port, request, processes)
        except MachineError as error:
            raise CommandError(str(error)) from error

    def _get_unenforced_processes(self, limits: MachineLimits) -> int | None:
        """Return the limit on processes if the guest must enforce it."""
        return None if "processes" in self.host.enforced_limits else limits.processes

    @asynccontextmanager
    async def _open_interpreter(self, seconds: float) -> AsyncIterator[_MachineInterpreter]:
        """Start a machine for calls of `seconds`, and wait until its interpreter is ready."""
        limits, command = self._limits.for_machine(), [*_ENVIRONMENT, *_GUEST]
        async with self._open_machine(command, limits, seconds, ReadyMessage) as (stream, _):
            processes = self._get_unenforced_processes(limits)
            yield _MachineInterpreter(stream, self._limits, processes)

    @asynccontextmanager
    async def _open_machine(
        self,
        guest: Sequence[str],
        limits: MachineLimits,
        seconds: float,
        ready_type: type[ReadyT],
    ) -> AsyncIterator[tuple[MachineStream, ReadyT]]:
        """Start a machine for `seconds`, and yield it with the first message of its guest. Raises
        MachineError."""
        async with AsyncExitStack() as stack:
            with report_wait("a program", f"a machine of {self._isolation.backend}"):
                await stack.enter_async_context(self._limiter.slot())
                try:
                    async with asyncio.timeout(START_TIMEOUT_SECONDS):
                        machine = await stack.enter_async_context(
                            self.host.open_machine(guest, limits, seconds)
                        )
                        stream = MachineStream(machine)
                        ready = await stream.receive_first(ready_type)
                except TimeoutError as error:
                    raise MachineError(_describe_silence(START_TIMEOUT_SECONDS)) from error
            yield stream, ready


class MachineSession:
    """`base.ProgramSession` in a machine, which the next call replaces if it was lost."""

    def __init__(
        self,
        open_interpreter: Callable[[float], AbstractAsyncContextManager[_MachineInterpreter]],
        wall_seconds: float,
        files: Mapping[str, bytes],
    ) -> None:
        self._open_interpreter = open_interpreter
        self._call_seconds = wall_seconds + ANSWER_TIMEOUT_SECONDS
        self._files = files
        self._stack = AsyncExitStack()
        self._interpreter: _MachineInterpreter | None = None
        self._has_started = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        self._interpreter = None
        await self._stack.aclose()

    async def run(self, code: str, stdin: str = "") -> ProgramResult:
        """Run a program, as `MachineBackend.run` does, with the variables of earlier calls."""
        files: Mapping[str, bytes] = {}
        restarted = False
        lifetime_seconds = self._call_seconds + IDLE_SECONDS
        try:
            if self._interpreter is None:
                files = self._files
                restarted, self._has_started = self._has_started, True
                self._interpreter = await self._stack.enter_async_context(
                    self._open_interpreter(lifetime_seconds)
                )
            else:
                await self._interpreter.stream.keep_alive(lifetime_seconds)
            async with asyncio.timeout(self._call_seconds):
                result = await self._interpreter.run(code, stdin, files, single_use=False)
        except MachineError as error:
            await self._close()
            raise ToolUnavailableError(str(error)) from error
        except TimeoutError as error:
            await self._close()
            raise ToolUnavailableError(_describe_silence(self._call_seconds)) from error
        except BaseException:  # a cancelled call is still running
            await self._close()
            raise
        if not self._interpreter.is_alive:
            await self._close()
        return replace(result, restarted=restarted)


def _describe_silence(seconds: float) -> str:
    return f"The machine of the program did not answer within {seconds:g} s."
