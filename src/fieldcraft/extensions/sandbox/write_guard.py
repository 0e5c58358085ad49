"""Start of a program that can change files in given folders only.

python -m fieldcraft.extensions.sandbox.write_guard FOLDER... -- PROGRAM ARGUMENT...

Each program waits for these imports, so there are few.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fieldcraft.extensions.sandbox import isolation, kernel, landlock

# Devices that programs write to, terminals included.
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts")
_SEPARATOR = "--"


def make_guarded_command(command: Sequence[str], writable: Sequence[str]) -> list[str]:
    """Return a command that runs another one, such that it can change files in the given folders
    only. It needs a system for which `write_guard_checks.explain_missing_guard` returns None."""
    module = "fieldcraft.extensions.sandbox.write_guard"
    return [sys.executable, "-P", "-s", "-m", module, *writable, _SEPARATOR, *command]


def main(arguments: Sequence[str]) -> None:
    """Restrict this process, and replace it by the program."""
    end = arguments.index(_SEPARATOR)
    writable, command = arguments[:end], [*arguments[end + 1 :]]
    if landlock.explain_missing(landlock.FILES) is None:
        landlock.restrict_changes([*writable, *filter(os.path.exists, DEVICES)])
    else:
        restrict_changes_by_mounts(writable)
    os.execvp(command[0], command)


def restrict_changes_by_mounts(writable: Sequence[str]) -> None:
    """Restrict this process and its descendants permanently, as `landlock.restrict_changes` does
    without signals: in a mount namespace of their own, all else is read-only. Devices can be
    written, as everywhere on read-only mounts. Needs user namespaces. Raises OSError."""
    proc = os.open("/proc", os.O_PATH)
    user, flags = os.getuid(), kernel.NEW_USER | kernel.NEW_MOUNT
    isolation.enter_user_namespace(proc, flags, user, os.getgid(), user)
    os.close(proc)
    kernel.mount("none", "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    for path in writable:
        kernel.mount(path, path, None, kernel.BIND | kernel.RECURSIVE)
    kernel.set_mount_flags("/", kernel.READ_ONLY)
    for path in writable:
        kernel.clear_mount_flags(path, kernel.READ_ONLY)
    os.chdir(os.getcwd())  # into the mount that can be written
    kernel.drop_capabilities()  # with which mounts could be changed again
    kernel.set_no_new_privileges()


if __name__ == "__main__":
    main(sys.argv[1:])
