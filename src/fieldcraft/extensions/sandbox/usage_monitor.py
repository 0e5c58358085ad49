"""Monitor of the total resources used by the processes of a program, read from /proc.

The kernel's own limits apply to single processes. So the template checks all processes several
times per second while the program runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum

CHECK_INTERVAL_SECONDS = 0.1
_EXITED_ERRORS = (FileNotFoundError, ProcessLookupError)  # the process has exited
_KIB = 1024
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_RESIDENT_FIELDS = (b"RssAnon", b"RssShmem", b"VmSwap")
_PROPORTIONAL_FIELDS = (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")


class ExceededLimit(StrEnum):
    """Limit that a program has exceeded."""

    MEMORY = "memory"
    CPU = "cpu"


class UsageMonitor:
    """Monitor of the processes of one namespace."""

    def __init__(
        self, proc: int, roots: tuple[int, int], memory_bytes: int, idle_bytes: int
    ) -> None:
        """Start to monitor the processes of a program.

        Args:
            proc: descriptor of the host's /proc.
            roots: host PIDs of the program's first process and of the init process, which adopts
                orphans.
            memory_bytes: limit for all processes together, beyond the initial memory of the first.
            idle_bytes: bytes that every process shares with the template when it is forked.
        """
        self._proc = proc
        self._roots = roots
        self._memory_bytes = memory_bytes
        self._idle_bytes = idle_bytes
        self._seconds = self._exited_seconds = self._start_seconds = 0.0

    def start(self, cpu_seconds: float) -> None:
        """Set the processor time that may be used from now on."""
        self._start_seconds = self._measure_cpu_seconds([*self._iterate_processes()])
        self._cpu_seconds = cpu_seconds

    def find_exceeded_limit(self) -> ExceededLimit | None:
        """Return the limit that the processes have exceeded together, or None."""
        processes = [*self._iterate_processes()]
        if self._measure_cpu_seconds(processes) - self._start_seconds > self._cpu_seconds:
            return ExceededLimit.CPU
        return ExceededLimit.MEMORY if self._exceeds_memory(processes) else None

    def _exceeds_memory(self, processes: list[int]) -> bool:
        """Return whether the processes use too much memory. Shared pages are counted once. This is
        slow, so it is done only if the sum that counts them for each process exceeds the limit."""
        max_bytes = self._memory_bytes + self._idle_bytes
        resident = [
            _sum_fields(self._proc, f"{process}/status", _RESIDENT_FIELDS) for process in processes
        ]
        if sum(max(bytes_ - self._idle_bytes, 0) for bytes_ in resident) <= self._memory_bytes:
            return False
        return (
            sum(
                _sum_fields(self._proc, f"{p}/smaps_rollup", _PROPORTIONAL_FIELDS)
                for p in processes
            )
            > max_bytes
        )

    def _measure_cpu_seconds(self, processes: list[int]) -> float:
        """Return the seconds of all processes. Time of exited processes that is not inherited by a
        parent stays counted."""
        now = 0.0
        for process in processes:
            with suppress(*_EXITED_ERRORS):
                fields = _read_file(self._proc, f"{process}/stat").rpartition(b")")[2].split()
                now += sum(map(int, fields[11:15])) / _TICKS_PER_SECOND
        self._exited_seconds += max(self._seconds - now, 0)
        self._seconds = now
        return now + self._exited_seconds

    def _iterate_processes(self) -> Iterator[int]:
        """Yield the process of the program and all its descendants, regardless of their current
        parent. The init process itself uses no resources."""
        program, init_process = self._roots
        found = [program, init_process]
        for process in found:
            with suppress(*_EXITED_ERRORS):
                tasks = os.open(f"{process}/task", os.O_RDONLY, dir_fd=self._proc)
                try:
                    threads = os.listdir(tasks)
                finally:
                    os.close(tasks)
                for thread in threads:
                    found += map(
                        int, _read_file(self._proc, f"{process}/task/{thread}/children").split()
                    )
            if process != init_process:
                yield process


def get_resident_bytes(proc: int) -> int:
    """Return the resident bytes of this process that are not backed by files; `proc` is a
    descriptor of /proc."""
    return _sum_fields(proc, "self/status", _RESIDENT_FIELDS)


def get_host_pid(proc: int, process: int) -> int:
    """Return the host PID of a process; `process` is a descriptor of it."""
    for line in _read_file(proc, f"self/fdinfo/{process}").splitlines():
        if line.startswith(b"Pid:"):
            return int(line.split()[1])
    raise ProcessLookupError


def _sum_fields(proc: int, path: str, names: tuple[bytes, ...]) -> int:
    """Sum the bytes of the lines with these names; 0 for a process that has exited."""
    with suppress(*_EXITED_ERRORS):
        lines = _read_file(proc, path).splitlines()
        pairs = (line.split()[:2] for line in lines if line.partition(b":")[0] in names)
        return _KIB * sum(int(size) for _, size in pairs)
    return 0


def _read_file(proc: int, path: str) -> bytes:
    with open(os.open(path, os.O_RDONLY, dir_fd=proc), "rb") as file:
        return file.read()
