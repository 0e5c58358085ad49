"""Resource limits of a sandboxed program, and the result of its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fieldcraft.types import UserError

MIB = 2**20


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one run or, in a session, of each call, unless stated otherwise."""

    wall_seconds: float = 10.0
    cpu_seconds: int = 10  # of all processes together
    memory_mb: int = 512  # of all processes together, and the address space of each, beyond idle
    processes: int = 16  # concurrent processes and threads, including the program's first
    disk_mb: int = 64  # all files of a run or session together; they are in memory
    file_mb: int = 64  # the largest file
    output_bytes: int = 32_768  # retained from standard output, and from standard error

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise UserError(f"the limit {name} of a sandbox must be greater than 0.")

    def for_worker(self) -> tuple[int, ...]:
        """Return the limits that are fixed for the lifetime of a worker."""
        return (self.memory_mb, self.processes, self.disk_mb, self.file_mb)


class ProgramStatus(StrEnum):
    """Outcome of a program."""

    FINISHED = "finished"  # it exited; see `exit_code`
    TIMEOUT = "timeout"  # it exceeded the limit of wall or CPU time
    MEMORY = "memory"  # its processes together exceeded the limit
    OUTPUT = "output"  # it wrote far more than the retained output
    LOST = "lost"  # its worker was killed from outside, or cannot be started


@dataclass(frozen=True)
class ProgramResult:
    """Result of a program.

    `exit_code` is as in `subprocess`: negative for a signal, None if the program was stopped.
    `value` is the repr of the last expression, None if missing. `stdout` and `stderr` are decoded
    as UTF-8, with U+FFFD for invalid bytes. A long output keeps its head and its tail, with a line
    between them; `omitted_bytes` is the number of dropped bytes of both outputs. `restarted` is
    True if this call of a session got a new interpreter, because the previous one had exited.
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
        """Return whether the program exited without an error."""
        return self.status is ProgramStatus.FINISHED and self.exit_code == 0
