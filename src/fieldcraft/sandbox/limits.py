"""Limits of what a sandboxed program may use, and the result of running one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fieldcraft.types import UserError

MIB = 2**20


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one run or, in a session, of each call where a line does not say otherwise."""

    wall_seconds: float = 10.0
    cpu_seconds: int = 10  # of all processes together
    memory_mb: int = 512  # of all processes together, and the address space of each, beyond idle
    processes: int = 16  # processes and threads at a time, the program's first included
    disk_mb: int = 64  # all files of a run or session together; they are in memory
    file_mb: int = 64  # the largest file
    output_bytes: int = 32_768  # kept of standard output, and as many of standard error

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise UserError(f"the limit {name} of a sandbox must be greater than 0.")

    def for_worker(self) -> tuple[int, ...]:
        """Return the limits that a worker has for good."""
        return (self.memory_mb, self.processes, self.disk_mb, self.file_mb)


class ProgramStatus(StrEnum):
    """End of a program."""

    FINISHED = "finished"  # by itself; `exit_code` says how
    TIMEOUT = "timeout"  # the limit of wall or of CPU time
    MEMORY = "memory"  # its processes together had more than the limit
    OUTPUT = "output"  # it wrote far more than anybody would keep
    LOST = "lost"  # its worker was killed from outside, or cannot be started


@dataclass(frozen=True)
class ProgramResult:
    """Result of a program.

    `exit_code` is as in `subprocess`: negative for a signal, None where the program was stopped.
    `value` is the repr of the last expression, None where there is none. `stdout` and `stderr` are
    decoded as UTF-8, with U+FFFD for what is none; a longer one keeps its head and its tail, with a
    line between them, and `omitted_bytes` counts the bytes of both that are missing. `restarted`
    says that this call of a session got a new interpreter, because the one before had ended.
    """

    status: ProgramStatus
    exit_code: int | None
    stdout: str
    stderr: str
    value: str | None = None
    seconds: float = 0.0
    omitted_bytes: int = 0
    restarted: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return whether the program ended by itself and without an error."""
        return self.status is ProgramStatus.FINISHED and self.exit_code == 0
