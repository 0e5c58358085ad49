"""Resources that the processes of a program use together, read from the kernel's /proc.

A limit of the kernel's own is one of each process. So the template looks at all of them, some times
a second, while the program runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum

CHECK_INTERVAL_SECONDS = 0.1
_EXITED_ERRORS = (FileNotFoundError, ProcessLookupError)  # the process, meanwhile
_KIB = 1024
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_RESIDENT_FIELDS = (b"RssAnon", b"RssShmem", b"VmSwap")
_PROPORTIONAL_FIELDS = (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")


class ExceededLimit(StrEnum):
    """The limit that a program has passed."""

    MEMORY = "memory"
    CPU = "cpu"


class UsageMonitor:
    """The processes of one namespace."""

    def __init__(
        self, proc: int, roots: tuple[int, int], memory_bytes: int, idle_bytes: int
    ) -> None:
        """Begin to watch the processes of a program.

        Args:
            proc: a descriptor of the host's /proc.
            roots: the program's first process and the init process, to which orphans fall, as the
                host numbers them.
            memory_bytes: that all processes may use together, beyond what the first began with.
            idle_bytes: bytes that every process shares with the template when it is forked.
        """
        self._proc = proc
        self._roots = roots
        self._memory_bytes = memory_bytes
        self._idle_bytes = idle_bytes
        self._seconds = self._exited_seconds = self._start_seconds = 0.0

    def start(self, cpu_seconds: float) -> None:
        """Let so much processor time be used from now on."""
        self._start_seconds = self._measure_cpu_seconds([*self._iterate_processes()])
        self._cpu_seconds = cpu_seconds

    def find_exceeded_limit(self) -> ExceededLimit | None:
        """Return the limit that the processes have passed together."""
        processes = [*self._iterate_processes()]
        if self._measure_cpu_seconds(processes) - self._start_seconds > self._cpu_seconds:
            return ExceededLimit.CPU
        return ExceededLimit.MEMORY if self._exceeds_memory(processes) else None

    def _exceeds_memory(self, processes: list[int]) -> bool:
        """Return whether the processes use too much memory. Pages that several processes have are
        counted once, which is slow to find out. So that is only done where they would be too much
        if each had its own."""
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
        """Return the seconds of all processes; time that nobody inherits from one that ends stays
        counted."""
        now = 0.0
        for process in processes:
            with suppress(*_EXITED_ERRORS):
                fields = _read_file(self._proc, f"{process}/stat").rpartition(b")")[2].split()
                now += sum(map(int, fields[11:15])) / _TICKS_PER_SECOND
        self._exited_seconds += max(self._seconds - now, 0)
        self._seconds = now
        return now + self._exited_seconds

    def _iterate_processes(self) -> Iterator[int]:
        """Yield the process of the program and all that it started, whoever is the parent now. The
        init process uses nothing itself."""
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
    """Return the bytes that this process has in memory and no file holds; `proc` is a descriptor of
    /proc."""
    return _sum_fields(proc, "self/status", _RESIDENT_FIELDS)


def get_host_pid(proc: int, process: int) -> int:
    """Return the number by which the host knows a process; `process` is a descriptor of it."""
    for line in _read_file(proc, f"self/fdinfo/{process}").splitlines():
        if line.startswith(b"Pid:"):
            return int(line.split()[1])
    raise ProcessLookupError


def _sum_fields(proc: int, path: str, names: tuple[bytes, ...]) -> int:
    """Sum the bytes of the lines with these names; 0 of a process that has ended."""
    with suppress(*_EXITED_ERRORS):
        lines = _read_file(proc, path).splitlines()
        pairs = (line.split()[:2] for line in lines if line.partition(b":")[0] in names)
        return _KIB * sum(int(size) for _, size in pairs)
    return 0


def _read_file(proc: int, path: str) -> bytes:
    with open(os.open(path, os.O_RDONLY, dir_fd=proc), "rb") as file:
        return file.read()
