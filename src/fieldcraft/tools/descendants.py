"""The end of all processes that a program of others has started, in whatever session they are.

Where there is a /proc, a program gets a mark in its environment, which its descendants inherit
whatever session they make. Elsewhere, as on macOS, only its group ends with it. So do descendants
that begin with an environment of their own, or in a container of a daemon's.
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

_PREFIX = "FIELDCRAFT_DESCENDANTS_OF_"
_PROC_FOLDER = Path("/proc")
_ENV_END_FIELD = 51 - 3  # its place in `_read_stat_fields`, which begin with the third


class ProcessDescendants:
    """The processes that have begun with `environment_mark` in their environment, and theirs."""

    def __init__(self) -> None:
        name = _PREFIX + secrets.token_hex(16)  # another name each, so that marks add up
        self.environment_mark = {name: "1"}
        self._environment_entry = f"{name}=1".encode()

    async def start(
        self, command: Sequence[str], variables: Mapping[str, str], **streams: Any
    ) -> Process:
        """Start a program that is one of them, in a session of its own. If this is cancelled, what
        has begun by then ends.

        Args:
            command: the program and its arguments.
            variables: of its environment, beside those of this process.
            streams: as those of `asyncio.create_subprocess_exec`.

        Raises OSError where there is no such program.
        """
        environment = {**os.environ, **variables, **self.environment_mark}
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command, env=environment, start_new_session=True, **streams
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # asyncio would wait for all that hold its pipes
            with suppress(OSError):
                process = await starting
                self.kill_group(process.pid)
                process._transport.close()  # type: ignore[attr-defined]
            raise

    def kill(self) -> None:
        """End all of them. They are stopped first, so that none starts another one meanwhile."""
        stopped: set[int] = set()
        while found := set(self._find_running()) - stopped:
            for pid in [pid for pid in found if _send_signal(pid, signal.SIGSTOP)]:
                _wait_until_stopped(_PROC_FOLDER / str(pid))
            stopped |= found
        for pid in stopped:
            _send_signal(pid, signal.SIGKILL)

    def kill_group(self, leader: int) -> None:
        """End the group of a leader, which is one of them, and all others."""
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        self.kill()

    def _find_running(self) -> Iterator[int]:
        """Yield the processes that can be found. A process that has ended has no environment any
        more."""
        if not _PROC_FOLDER.is_dir():
            return
        for folder in _PROC_FOLDER.iterdir():
            if folder.name.isdecimal():
                with suppress(OSError):  # it is another user's, or has ended by now
                    if self._environment_entry in _read_environment(folder).split(b"\0"):
                        yield int(folder.name)


def _read_environment(process: Path) -> bytes:
    """Read the environment with which a process has begun, b"" for one of the kernel. In the middle
    of an execve there is none for a moment, which is waited for: nobody can escape in it."""
    while True:
        is_starting = _is_starting(process)  # asked first: it may be over before the reading is
        if (found := (process / "environ").read_bytes()) or not is_starting:
            return found
        time.sleep(0.0005)


def _is_starting(process: Path) -> bool:
    """Tell whether a process has memory, and no environment in it yet."""
    size = (process / "statm").read_bytes().split()[0]
    return size != b"0" and _read_stat_fields(process)[_ENV_END_FIELD] == b"0"


def _wait_until_stopped(process: Path) -> None:
    """Wait until each thread of a process that was told to stop does so: what it was starting at
    that moment has begun then, and is found."""
    with suppress(OSError):  # it has ended
        while any(
            _read_stat_fields(task)[0] in (b"R", b"S") for task in (process / "task").iterdir()
        ):
            time.sleep(0.0005)


def _read_stat_fields(process: Path) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on, see proc(5)."""
    return (process / "stat").read_bytes().rpartition(b")")[2].split()


def _send_signal(pid: int, number: int) -> bool:
    """Tell whether a signal could be sent."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
        return True
    return False
