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
_PROCESSES = Path("/proc")
_ENV_END = 51 - 3  # its place in `_fields`, which begin with the third


class Descendants:
    """The processes that have begun with `variables` in their environment, and theirs."""

    def __init__(self) -> None:
        name = _PREFIX + secrets.token_hex(16)  # another name each, so that marks add up
        self.variables = {name: "1"}
        self._entry = f"{name}=1".encode()

    async def begin(
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
        environment = {**os.environ, **variables, **self.variables}
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
        while new := set(self._living()) - stopped:
            for pid in [pid for pid in new if _send(pid, signal.SIGSTOP)]:
                _until_stopped(_PROCESSES / str(pid))
            stopped |= new
        for pid in stopped:
            _send(pid, signal.SIGKILL)

    def kill_group(self, leader: int) -> None:
        """End the group of a leader, which is one of them, and all others."""
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        self.kill()

    def _living(self) -> Iterator[int]:
        """Yield the processes that can be found. A process that has ended has no environment any
        more."""
        if not _PROCESSES.is_dir():
            return
        for folder in _PROCESSES.iterdir():
            if folder.name.isdecimal():
                with suppress(OSError):  # it is another user's, or has ended by now
                    if self._entry in _environment(folder).split(b"\0"):
                        yield int(folder.name)


def _environment(process: Path) -> bytes:
    """Read the environment with which a process has begun, b"" for one of the kernel. In the middle
    of an execve there is none for a moment, which is waited for: nobody can escape in it."""
    while True:
        beginning = _is_beginning(process)  # asked first: it may be over before the reading is
        if (found := (process / "environ").read_bytes()) or not beginning:
            return found
        time.sleep(0.0005)


def _is_beginning(process: Path) -> bool:
    """Tell whether a process has memory, and no environment in it yet."""
    size = (process / "statm").read_bytes().split()[0]
    return size != b"0" and _fields(process)[_ENV_END] == b"0"


def _until_stopped(process: Path) -> None:
    """Wait until each thread of a process that was told to stop does so: what it was starting at
    that moment has begun then, and is found."""
    with suppress(OSError):  # it has ended
        while any(_fields(task)[0] in (b"R", b"S") for task in (process / "task").iterdir()):
            time.sleep(0.0005)


def _fields(process: Path) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on, see proc(5)."""
    return (process / "stat").read_bytes().rpartition(b")")[2].split()


def _send(pid: int, number: int) -> bool:
    """Tell whether a signal could be sent."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
        return True
    return False
