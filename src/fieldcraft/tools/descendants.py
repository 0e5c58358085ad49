"""The end of all processes that a program of others has started, in whatever session they are.

Where there is a /proc, a program gets a mark in its environment, which its descendants inherit
whatever session they make. Elsewhere, as on macOS, only its group ends with it. So do descendants
that begin with an environment of their own, or in a container of a daemon's.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PREFIX = "FIELDCRAFT_DESCENDANTS_OF_"
_PROCESSES = Path("/proc")


class Descendants:
    """The processes that have begun with `variables` in their environment, and theirs."""

    def __init__(self) -> None:
        name = _PREFIX + secrets.token_hex(16)  # another name each, so that marks add up
        self.variables = {name: "1"}
        self._entry = f"{name}=1".encode()

    def kill(self) -> None:
        """End all of them. They are stopped first, so that none starts another one meanwhile."""
        stopped: set[int] = set()
        while new := set(self._living()) - stopped:
            for pid in new:
                _send(pid, signal.SIGSTOP)
            stopped |= new
        for pid in stopped:
            _send(pid, signal.SIGKILL)

    def kill_group(self, leader: int) -> None:
        """End the group of a leader, which is one of them, and all others."""
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        self.kill()

    def _living(self) -> Iterator[int]:
        """Those that can be found. A process that has ended has no environment any more."""
        if not _PROCESSES.is_dir():
            return
        for folder in _PROCESSES.iterdir():
            if folder.name.isdecimal():
                with suppress(OSError):  # it is another user's, or has ended by now
                    if self._entry in (folder / "environ").read_bytes().split(b"\0"):
                        yield int(folder.name)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
