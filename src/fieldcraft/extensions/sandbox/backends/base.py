"""Interfaces of sandbox backends, which run untrusted programs in different places.

The tool `python` sends them programs in Python, and the environment `command` command lines.

A backend is a function or class that a recipe names (`ComponentKind.SANDBOX_BACKEND`). It is called
with its settings, and with `limits` (`SandboxLimits`) and `max_concurrent` if it accepts them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from fieldcraft.extensions.sandbox.limits import MachineLimits, ProgramResult
from fieldcraft.tools.base import Isolation


class ProgramSession(Protocol):
    """Interpreter that keeps variables and files between calls, which run one at a time."""

    async def run(self, code: str, stdin: str = "") -> ProgramResult:
        """Run a program, as `SandboxBackend.run` does. After a call that did not finish, such as
        a timeout, the next one gets a new interpreter, and its `restarted` is True."""


class SandboxBackend(Protocol):
    """Place where untrusted Python programs run. It is used from any event loop."""

    async def run(
        self, code: str, stdin: str = "", files: Mapping[str, bytes] | None = None
    ) -> ProgramResult:
        """Run a program in a new interpreter with `files` in its working folder. When it returns,
        nothing that the program started is left.

        Raises:
            ToolUnavailableError: the place does not run programs now; one sentence.
            ToolError: the place rejects the program.
        """

    def describe_isolation(self) -> Isolation:
        """Return what separates a program from the machine, for the log and the report."""


@runtime_checkable
class SessionBackend(SandboxBackend, Protocol):
    """Backend whose programs can share an interpreter."""

    def open_session(
        self, *, files: Mapping[str, bytes] | None = None
    ) -> AbstractAsyncContextManager[ProgramSession]:
        """Return a context with an interpreter, which starts with the first call and ends with
        the context. Its calls raise the errors of `run`."""


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """Command of an agent, which runs in an empty folder of its own.

    Attributes:
        line: command line for the shell.
        stdin: its standard input.
        task: content of the file that FIELDCRAFT_TASK names.
        files: files in the working folder: name -> (content, mode).
        service_url: URL of the service that the command may call, whatever network it has.
        make_variables: returns its environment variables for the URL at which it finds the service.
        results: names of files in the working folder that are returned.
        limits: limits, of which the backend enforces `CommandBackend.command_limits`.
        seconds: time after which the caller cancels it.
    """

    line: str
    stdin: bytes
    task: bytes
    files: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)
    service_url: str
    make_variables: Callable[[str], Mapping[str, str]]
    results: Sequence[str]
    limits: MachineLimits
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CommandOutcome:
    """Result of a command.

    Attributes:
        exit_code: as in `subprocess`.
        output: the standard output.
        error_tail: the end of the standard error.
        files: content of each file of `CommandRequest.results` that exists.
    """

    exit_code: int
    output: bytes
    error_tail: bytes
    files: Mapping[str, bytes]


class CommandError(Exception):
    """A command has no result; the message is a clause or a sentence."""


@runtime_checkable
class CommandBackend(Protocol):
    """Place where commands of agents run.

    Attributes:
        max_concurrent: number of commands that may run at a time.
        command_limits: names of the limits in `MachineLimits` that it enforces for a command.
    """

    @property
    def max_concurrent(self) -> int: ...

    @property
    def command_limits(self) -> Collection[str]: ...

    async def run_command(self, request: CommandRequest) -> CommandOutcome:
        """Run a command, until it exits. When this call ends, however it ends, nothing that the
        command has started or written is left.

        Raises CommandError if the place runs no commands now, the output or a file of the results
        is longer than MAX_RESULT_BYTES, or the latter is not a file.
        """

    def describe_isolation(self) -> Isolation:
        """Return what separates commands from the machine, for the log and the report."""


class Machine(Protocol):
    """Running command in a machine of its own: a container, or a virtual machine."""

    async def send(self, data: bytes) -> None:
        """Write to the standard input. Raises MachineError if the command has ended."""

    async def receive(self) -> bytes:
        """Return the next bytes of the standard output, b"" at its end. Raises MachineError."""

    async def keep_alive(self, lifetime_seconds: float) -> None:
        """Set the lifetime of the machine anew, see `MachineHost.open_machine`. Raises
        MachineError."""


class MachineHost(Protocol):
    """Engine or service that starts machines.

    `enforced_limits`: names of the limits in `MachineLimits` that its machines have by themselves.
    """

    @property
    def enforced_limits(self) -> Collection[str]: ...

    def open_machine(
        self, command: Sequence[str], limits: MachineLimits, lifetime_seconds: float
    ) -> AbstractAsyncContextManager[Machine]:
        """Return a context in which a command runs in a new machine. When it ends, however it
        ends, the machine and all its processes are removed. `lifetime_seconds` is the time after
        which a service may remove it by itself, if this process is gone.

        Raises MachineError if it does not start.
        """


class MachineError(Exception):
    """A machine does not start, or was lost; the message is one sentence."""
