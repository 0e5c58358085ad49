"""Programs in machines of their own, whatever engine or service starts these.

Each run and each session has a new machine, in which `guest.py` runs the programs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from importlib import resources
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import Base64Bytes, BaseModel, ValidationError

from fieldcraft.concurrency import ConcurrencyLimiter
from fieldcraft.extensions.sandbox.backends.base import Machine, MachineError, MachineHost
from fieldcraft.extensions.sandbox.limits import (
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
MAX_LINE_BYTES = 64 * 2**20
# As in the own sandbox: a program prints a set in the same order each time, libraries use one
# thread, and threads reserve no address space.
_ENVIRONMENT = (
    "PYTHONHASHSEED=0",
    "OMP_NUM_THREADS=1",
    "OPENBLAS_NUM_THREADS=1",
    "MALLOC_ARENA_MAX=1",
)
_SANDBOX_PACKAGE = "fieldcraft.extensions.sandbox"


async def run_to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await work that cleans up, even if this task is cancelled meanwhile."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


class _GuestMessage(BaseModel):
    """Message of a guest, see `guest.py`."""

    ready: str | None = None
    output: Literal[1, 2] | None = None
    data: Base64Bytes = b""
    end: int | None = None
    status: ProgramStatus | None = None
    value: str | None = None
    alive: bool = False


def make_guest_command() -> list[str]:
    """Return the command that runs the guest in a machine, with its source code."""
    folder = resources.files(_SANDBOX_PACKAGE)
    execution = (folder / "execution.py").read_text("utf-8")
    guest = (folder / "backends" / "guest.py").read_text("utf-8")
    packages = [_SANDBOX_PACKAGE.rsplit(".", n)[0] for n in (2, 1, 0)]
    module = f"{_SANDBOX_PACKAGE}.execution"
    # The guest imports the module by its name, in a machine that has no fieldcraft.
    lines = [
        "import sys, types",
        f"for name in {[*packages, module]!r}: sys.modules[name] = types.ModuleType(name)",
        f"exec(compile({execution!r}, '<fieldcraft>', 'exec'), sys.modules[{module!r}].__dict__)",
        f"exec(compile({guest!r}, '<fieldcraft>', 'exec'))",
        "main()",
    ]
    return ["env", *_ENVIRONMENT, "python3", "-c", "\n".join(lines)]


class _MachineInterpreter:
    """Interpreter in a machine, seen from the host."""

    def __init__(self, machine: Machine, limits: SandboxLimits, counts_processes: bool) -> None:
        """Create the interpreter. `counts_processes`: the machine limits processes by itself."""
        self._machine = machine
        self._limits = limits
        self._counts_processes = counts_processes
        self._received = bytearray()
        self.is_alive = True  # and can run another program

    async def keep_alive(self, seconds: float) -> None:
        """Keep the machine for these seconds. Raises MachineError."""
        await self._machine.keep_alive(seconds)

    async def wait_until_ready(self) -> None:
        """Wait for the first message. Raises MachineError if the machine has no usable Python."""
        while True:  # a shell may print something before
            line = await self._read_line()
            if line.startswith(b"{") and _parse_message(line).ready is not None:
                return

    async def run(
        self, code: str, stdin: str, files: Mapping[str, bytes], single_use: bool
    ) -> ProgramResult:
        """Run a program. Raises MachineError if the machine is lost or sends nonsense."""
        started = time.perf_counter()
        request = self._make_request(code, stdin, files, single_use)
        await self._machine.send(json.dumps(request).encode() + b"\n")
        limit = self._limits.output_bytes
        stdout, stderr = OutputBuffer(limit), OutputBuffer(limit)
        status, exit_code, value = ProgramStatus.OUTPUT, None, None
        self.is_alive = False
        while max(stdout.total_bytes, stderr.total_bytes) <= limit * _FLOOD_FACTOR:
            message = _parse_message(await self._read_line())
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
            "processes": None if self._counts_processes else limits.processes,
            "file_mb": limits.file_mb,
        }

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


def _parse_message(line: bytes) -> _GuestMessage:
    try:
        return _GuestMessage.model_validate_json(line)
    except ValidationError as error:
        raise MachineError(
            "The machine of the program sends something else than results."
        ) from error


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

    @asynccontextmanager
    async def _open_interpreter(self, seconds: float) -> AsyncIterator[_MachineInterpreter]:
        """Start a machine for calls of `seconds`, and wait until its interpreter is ready."""
        host = self.host
        async with AsyncExitStack() as stack:
            with report_wait("a program", f"a machine of {self._isolation.backend}"):
                await stack.enter_async_context(self._limiter.slot())
                try:
                    async with asyncio.timeout(START_TIMEOUT_SECONDS):
                        machine = await stack.enter_async_context(
                            host.open_machine(make_guest_command(), self._limits, seconds)
                        )
                        interpreter = _MachineInterpreter(
                            machine, self._limits, host.counts_processes
                        )
                        await interpreter.wait_until_ready()
                except TimeoutError as error:
                    raise MachineError(_describe_silence(START_TIMEOUT_SECONDS)) from error
            yield interpreter


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
                await self._interpreter.keep_alive(lifetime_seconds)
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
