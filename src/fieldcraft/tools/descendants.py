"""Termination of all processes that a third-party program has started, in any session.

On systems with /proc, a program gets a mark in its environment, which its descendants inherit in
any session. On other systems, such as macOS, only its process group is killed. The same holds for
descendants that start with a new environment, or in a container of a daemon.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fieldcraft.concurrency import run_to_the_end

_PREFIX = "FIELDCRAFT_DESCENDANTS_OF_"
PROC_FOLDER = Path("/proc")
_POLL_SECONDS = 0.02  # seconds between two checks whether a process has exited
_ENV_END_FIELD = 51 - 3  # index in `_read_stat_fields`, which starts with field 3


class ProcessDescendants:
    """Processes started with `environment_mark` in their environment, and their descendants."""

    def __init__(self) -> None:
        name = _PREFIX + secrets.token_hex(16)  # unique, so that nested marks add up
        self.environment_mark = {name: "1"}
        self._environment_entry = f"{name}=1".encode()

    async def start(
        self, command: Sequence[str], variables: Mapping[str, str], **streams: Any
    ) -> Process:
        """Start a marked program in a new session. If this call is cancelled, processes that it has
        started are killed.

        Args:
            command: the program and its arguments.
            variables: environment variables in addition to those of this process.
            streams: stream arguments of `asyncio.create_subprocess_exec`.

        Raises OSError if the program does not exist.
        """
        environment = {**os.environ, **variables, **self.environment_mark}
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command, env=environment, start_new_session=True, **streams
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # asyncio would wait for all processes that hold its pipes
            await run_to_the_end(self._kill_when_started(starting))
            raise

    async def _kill_when_started(self, starting: asyncio.Future[Process]) -> None:
        with suppress(OSError):
            process = await starting
            self.kill_group(process.pid)
            process._transport.close()  # type: ignore[attr-defined]

    def kill(self) -> None:
        """Kill all of them. They are stopped first, so that none can start another process."""
        stopped: set[int] = set()
        while found := set(self._find_running()) - stopped:
            for pid in [pid for pid in found if _send_signal(pid, signal.SIGSTOP)]:
                _wait_until_stopped(PROC_FOLDER / str(pid))
            stopped |= found
        for pid in stopped:
            _send_signal(pid, signal.SIGKILL)

    def kill_group(self, leader: int) -> None:
        """Kill the process group of a leader, which is one of them, and all other processes."""
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        self.kill()

    def _find_running(self) -> Iterator[int]:
        """Yield the running marked processes. A process that has exited has no environment."""
        if not PROC_FOLDER.is_dir():
            return
        for folder in PROC_FOLDER.iterdir():
            if folder.name.isdecimal():
                with suppress(OSError):  # it belongs to another user, or has exited
                    if self._environment_entry in _read_environment(folder).split(b"\0"):
                        yield int(folder.name)


async def wait_for_exit(process: Process) -> int:
    """Wait for a process, and return its exit status.

    `Process.wait` would also wait for all other processes that hold its pipes.
    """
    while process.returncode is None:
        await asyncio.sleep(_POLL_SECONDS)
    return process.returncode


def _read_environment(process: Path) -> bytes:
    """Read the initial environment of a process, b"" for a kernel thread.

    During an execve the environment is empty for a moment. This function waits for its end, so that
    no process escapes during it.
    """
    while True:
        is_starting = _is_starting(process)  # checked first: the execve may end before the read
        if (found := (process / "environ").read_bytes()) or not is_starting:
            return found
        time.sleep(0.0005)


def _is_starting(process: Path) -> bool:
    """Return whether a process has memory but no environment yet."""
    size = (process / "statm").read_bytes().split()[0]
    return size != b"0" and _read_stat_fields(process)[_ENV_END_FIELD] == b"0"


def _wait_until_stopped(process: Path) -> None:
    """Wait until each thread of a process that was sent SIGSTOP has stopped.

    A process that it was starting at that moment then exists and can be found.
    """
    with suppress(OSError):  # it has exited
        while any(
            _read_stat_fields(task)[0] in (b"R", b"S") for task in (process / "task").iterdir()
        ):
            time.sleep(0.0005)


def _read_stat_fields(process: Path) -> list[bytes]:
    """Return the fields of /proc/PID/stat, starting with the state; see proc(5)."""
    return (process / "stat").read_bytes().rpartition(b")")[2].split()


def _send_signal(pid: int, number: int) -> bool:
    """Send a signal, and return whether this succeeded."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
        return True
    return False
