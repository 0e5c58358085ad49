"""Interfaces of sandbox backends, which run untrusted programs in different places.

A backend is a function or class that a recipe names (`ComponentKind.SANDBOX_BACKEND`). It is called
with its settings, and with `limits` (`SandboxLimits`) and `max_concurrent` if it accepts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from fieldcraft.extensions.sandbox.limits import ProgramResult, SandboxLimits
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
    """Engine or service that starts machines, also for agents that are commands.

    `counts_processes`: its machines limit the number of their processes by themselves.
    """

    counts_processes: bool

    def open_machine(
        self, command: Sequence[str], limits: SandboxLimits, lifetime_seconds: float
    ) -> AbstractAsyncContextManager[Machine]:
        """Return a context in which a command runs in a new machine. When it ends, however it
        ends, the machine and all its processes are removed. `lifetime_seconds` is the time after
        which a service may remove it by itself, if this process is gone.

        Raises MachineError if it does not start.
        """


class MachineError(Exception):
    """A machine does not start, or was lost; the message is one sentence."""
