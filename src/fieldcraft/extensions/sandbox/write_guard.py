"""Start of a program that can change files in given folders only.

python -m fieldcraft.extensions.sandbox.write_guard FOLDER... -- PROGRAM ARGUMENT...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fieldcraft.extensions.sandbox import landlock

# Devices that programs write to, terminals included.
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts")
_SEPARATOR = "--"


def make_guarded_command(command: Sequence[str], writable: Sequence[str]) -> list[str]:
    """Return a command that runs another one, such that it can change files in the given folders
    only. It needs `landlock.FILES`."""
    module = "fieldcraft.extensions.sandbox.write_guard"
    return [sys.executable, "-P", "-s", "-m", module, *writable, _SEPARATOR, *command]


def main(arguments: Sequence[str]) -> None:
    """Restrict this process, and replace it by the program."""
    end = arguments.index(_SEPARATOR)
    devices = filter(os.path.exists, DEVICES)
    landlock.restrict_changes([*arguments[:end], *devices])
    command = [*arguments[end + 1 :]]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
