"""Folder in which a command runs, on this machine or in another one.

The guest of a machine has this module as text, in Python 3.9 or newer.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

TASK_VARIABLE = "FIELDCRAFT_TASK"
MAX_RESULT_BYTES = 2**20  # of an output, and of each file that a command leaves
SHELL = ("/bin/sh", "-c")
_TASK_FILE = "task.json"
# Folders of the XDG Base Directory Specification, which would otherwise be those of the user.
_BASE_FOLDERS = {
    "XDG_CONFIG_HOME": "home/.config",
    "XDG_CACHE_HOME": "home/.cache",
    "XDG_DATA_HOME": "home/.local/share",
    "XDG_STATE_HOME": "home/.local/state",
    "XDG_RUNTIME_DIR": "tmp",
}


class CommandResultError(Exception):
    """A command left something else than results; the message is a clause."""


class CommandFolder:
    """Folder of a command: its task, and the folders that it works in."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.work = os.path.join(root, "work")

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that keep a program within the folder."""
        paths = {TASK_VARIABLE: _TASK_FILE, "HOME": "home", "TMPDIR": "tmp", "PWD": "work"}
        paths |= _BASE_FOLDERS
        return {name: os.path.join(self.root, path) for name, path in paths.items()}

    def create(self, task: bytes, files: Mapping[str, tuple[bytes, int]]) -> None:
        """Write the task, and files of the working folder: name -> (content, mode)."""
        for name in ("work", "home", "tmp"):
            os.mkdir(os.path.join(self.root, name))
        with open(os.path.join(self.root, _TASK_FILE), "wb") as file:
            file.write(task)
        for name, (content, mode) in files.items():
            path = os.path.join(self.work, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
            os.chmod(path, mode)

    def read_result(self, name: str) -> bytes | None:
        """Return the content of a file in the working folder, None if it does not exist. A link or
        a pipe is not opened: it may lead out of the folder, or never end.

        Raises CommandResultError for what is no file, or has more than MAX_RESULT_BYTES.
        """
        try:
            path = os.path.join(self.work, name)
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CommandResultError(f"{name} cannot be read ({error.strerror})") from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CommandResultError(f"{name} is not a file")
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(MAX_RESULT_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(content) > MAX_RESULT_BYTES:
            raise CommandResultError(f"{name} has more than {MAX_RESULT_BYTES} bytes")
        return content
