"""Resources that the processes of a program use together, read from the kernel's /proc.

A limit of the kernel's own is one of each process. So the template looks at all of them, some times
a second, while the program runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum

EVERY_SECONDS = 0.1
_ENDED = (FileNotFoundError, ProcessLookupError)  # the process, meanwhile
_KIB = 1024
_TICKS = os.sysconf("SC_CLK_TCK")
_RESIDENT = (b"RssAnon", b"RssShmem", b"VmSwap")
_PROPORTIONAL = (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")


class Over(StrEnum):
    """The limit that a program has passed."""

    MEMORY = "memory"
    CPU = "cpu"


class UsageWatch:
    """The processes of one namespace."""

    def __init__(self, proc: int, roots: tuple[int, int], memory_bytes: int, idle: int) -> None:
        """Begin to watch the processes of a program.

        Args:
            proc: a descriptor of the host's /proc.
            roots: the program's first process and the keeper, to which orphans fall, as the host
                numbers them.
            memory_bytes: that all processes may use together, beyond what the first began with.
            idle: bytes that every process shares with the template when it is forked.
        """
        self._proc = proc
        self._roots = roots
        self._memory = memory_bytes
        self._idle = idle
        self._seconds = self._lost = self._began = 0.0

    def begin(self, cpu_seconds: float) -> None:
        """Let so much processor time be used from now on."""
        self._began = self._processor_time([*self._processes()])
        self._cpu = cpu_seconds

    def over(self) -> Over | None:
        """Return the limit that the processes have passed together."""
        processes = [*self._processes()]
        if self._processor_time(processes) - self._began > self._cpu:
            return Over.CPU
        return Over.MEMORY if self._memory_is_over(processes) else None

    def _memory_is_over(self, processes: list[int]) -> bool:
        """Return whether the processes use too much memory. Pages that several processes have are
        counted once, which is slow to find out. So that is only done where they would be too much
        if each had its own."""
        most = self._memory + self._idle
        each = [_sum(self._proc, f"{process}/status", _RESIDENT) for process in processes]
        if sum(max(bytes_ - self._idle, 0) for bytes_ in each) <= self._memory:
            return False
        return sum(_sum(self._proc, f"{p}/smaps_rollup", _PROPORTIONAL) for p in processes) > most

    def _processor_time(self, processes: list[int]) -> float:
        """Return the seconds of all processes; time that nobody inherits from one that ends stays
        counted."""
        now = 0.0
        for process in processes:
            with suppress(*_ENDED):
                fields = _read(self._proc, f"{process}/stat").rpartition(b")")[2].split()
                now += sum(map(int, fields[11:15])) / _TICKS
        self._lost += max(self._seconds - now, 0)
        self._seconds = now
        return now + self._lost

    def _processes(self) -> Iterator[int]:
        """Yield the process of the program and all that it started, whoever is the parent now. The
        keeper uses nothing itself."""
        program, keeper = self._roots
        found = [program, keeper]
        for process in found:
            with suppress(*_ENDED):
                tasks = os.open(f"{process}/task", os.O_RDONLY, dir_fd=self._proc)
                try:
                    threads = os.listdir(tasks)
                finally:
                    os.close(tasks)
                for thread in threads:
                    found += map(
                        int, _read(self._proc, f"{process}/task/{thread}/children").split()
                    )
            if process != keeper:
                yield process


def resident_bytes(proc: int) -> int:
    """Return the bytes that this process has in memory and no file holds; `proc` is a descriptor of
    /proc."""
    return _sum(proc, "self/status", _RESIDENT)


def host_number(proc: int, process: int) -> int:
    """Return the number by which the host knows a process; `process` is a descriptor of it."""
    for line in _read(proc, f"self/fdinfo/{process}").splitlines():
        if line.startswith(b"Pid:"):
            return int(line.split()[1])
    raise ProcessLookupError


def _sum(proc: int, path: str, names: tuple[bytes, ...]) -> int:
    """Sum the bytes of the lines with these names; 0 of a process that has ended."""
    with suppress(*_ENDED):
        lines = _read(proc, path).splitlines()
        pairs = (line.split()[:2] for line in lines if line.partition(b":")[0] in names)
        return _KIB * sum(int(size) for _, size in pairs)
    return 0


def _read(proc: int, path: str) -> bytes:
    with open(os.open(path, os.O_RDONLY, dir_fd=proc), "rb") as file:
        return file.read()
