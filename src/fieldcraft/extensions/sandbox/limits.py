"""Resource limits of a sandboxed program, the result of its run, and truncation of its output."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fieldcraft.types import UserError

MIB = 2**20
_GUEST_MEMORY_MB = 64  # of the interpreter itself, beside the memory of the program
_GUEST_PROCESSES = 2
GAP_TEMPLATE = "\n[{} bytes left out]\n"


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
            if not 0 < value < math.inf:
                raise UserError(f"the limit {name} of a sandbox must be finite and greater than 0.")

    def for_machine(self) -> MachineLimits:
        """Return the limits of a machine in which a guest runs programs."""
        return MachineLimits(
            memory_mb=self.memory_mb + _GUEST_MEMORY_MB,
            processes=self.processes + _GUEST_PROCESSES,
            disk_mb=self.disk_mb,
            open_files=256,  # of the guest, which lowers it for programs
            executable_files=False,
        )

    def for_worker(self) -> tuple[int, ...]:
        """Return the limits that are fixed for the lifetime of a worker."""
        return (self.memory_mb, self.processes, self.disk_mb, self.file_mb)


@dataclass(frozen=True, kw_only=True)
class MachineLimits:
    """Limits of a machine, for all its processes together.

    Attributes:
        memory_mb: memory, files in memory included.
        processes: concurrent processes and threads.
        disk_mb: size of each folder in which a process can write.
        open_files: open files of each process.
        executable_files: files that a process has written can be executed.
    """

    memory_mb: int = 2048
    processes: int = 512
    disk_mb: int = 1024
    open_files: int = 4096
    executable_files: bool = True


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


class OutputBuffer:
    """Buffer of output that keeps the head and the tail, and drops the bytes between them."""

    def __init__(self, max_bytes: int) -> None:
        """Keep at most `max_bytes` bytes."""
        self.total_bytes = 0
        self._head_bytes = max_bytes - max_bytes // 2
        self._tail_bytes = max_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        self.total_bytes += len(data)
        head = data[: max(self._head_bytes - len(self._head), 0)]
        self._head += head
        self._tail += data[len(head) :]
        if len(self._tail) > 2 * self._tail_bytes:  # not for each chunk
            del self._tail[: len(self._tail) - self._tail_bytes]

    @property
    def omitted_bytes(self) -> int:
        return max(self.total_bytes - self._head_bytes - self._tail_bytes, 0)

    def render(self) -> str:
        """Return the text decoded as UTF-8, with U+FFFD for invalid bytes."""
        tail = bytes(self._tail[max(len(self._tail) - self._tail_bytes, 0) :])
        if not self.omitted_bytes:
            return bytes(self._head + tail).decode("utf-8", "replace")
        head = self._head.decode("utf-8", "replace")
        return head + GAP_TEMPLATE.format(self.omitted_bytes) + tail.decode("utf-8", "replace")


def truncate_output(text: str, max_bytes: int) -> str:
    """Truncate a text to at most `max_bytes` bytes, plus the line between its halves."""
    buffer = OutputBuffer(max_bytes)
    buffer.add(text.encode("utf-8", "replace"))
    return buffer.render()
