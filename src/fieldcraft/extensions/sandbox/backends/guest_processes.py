"""Processes inside a machine, for the guests, which have this module as text.

They run in Python 3.9 or newer on Linux.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

_SET_DEATH_SIGNAL, _SET_DUMPABLE = 1, 4
_libc = ctypes.CDLL(None)


def hide_memory() -> None:
    """Keep processes of the same user from the memory and the descriptors of this one."""
    _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def die_with_parent() -> None:
    _libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def count_threads_of_user() -> int:
    """Return the number of threads of this user, without that of the caller."""
    count = -1
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


def reap_orphans(program: int) -> None:
    """Reap processes without a parent, if this is the first process of a container, but not the
    program."""
    with suppress(ChildProcessError):
        while os.getpid() == 1:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == program:
                return
            os.waitpid(found.si_pid, 0)
