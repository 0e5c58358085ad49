"""Landlock: what a process may do with files, ports and other processes, decided by itself.

Each part needs a version of the kernel's interface, which is checked: the usual libraries drop what
an older kernel lacks and say nothing.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence

from fieldcraft.sandbox import kernel

FILES, NETWORK, SCOPES = "landlock-files", "landlock-network", "landlock-scopes"
# version that first has it: truncation of files; TCP; abstract sockets and signals
NEEDED: Mapping[str, int] = {FILES: 3, NETWORK: 4, SCOPES: 6}
_IOCTL_VERSION = 5

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_ALL_OF_FILES = (1 << 15) - 1  # up to truncation
_DEVICE_IOCTL = 1 << 15
_OF_A_FILE = _WRITE_FILE | _READ_FILE | 1 << 14
_TCP, _SCOPES = 0b11, 0b11
_MAKE_CHARACTER_DEVICE, _MAKE_SOCKET, _MAKE_BLOCK_DEVICE = 1 << 6, 1 << 9, 1 << 11
_WRITABLE = _ALL_OF_FILES & ~(_EXECUTE | _MAKE_CHARACTER_DEVICE | _MAKE_SOCKET | _MAKE_BLOCK_DEVICE)


def missing(part: str) -> str | None:
    """Return why the kernel cannot do a part, or None."""
    try:
        version = kernel.landlock_version()
    except OSError as error:
        return f"Landlock is switched off ({error.strerror})"
    if version < NEEDED[part]:
        return f"the kernel's Landlock has version {version}, and {NEEDED[part]} is needed"
    return None


def restrict(parts: Sequence[str], readable: Sequence[str], writable: Sequence[str]) -> None:
    """Confine this process for good.

    Args:
        parts: of NEEDED; each must not be `missing`.
        readable: folders whose files can be read.
        writable: files, and folders in which everything but execution and special files is allowed.

    Raises OSError.
    """
    version = kernel.landlock_version()
    files = _ALL_OF_FILES | (_DEVICE_IOCTL if version >= _IOCTL_VERSION else 0)
    handled = (
        files if FILES in parts else 0,
        _TCP if NETWORK in parts else 0,
        _SCOPES if SCOPES in parts else 0,
    )
    known = sum(version >= needed for needed in NEEDED.values())
    ruleset = kernel.landlock_create(struct.pack(f"={known}Q", *handled[:known]))
    try:
        if FILES in parts:
            for folder in readable:
                _add(ruleset, _READ_FILE | _READ_FOLDER, folder)
            for folder in writable:
                _add(ruleset, _WRITABLE, folder)
        kernel.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)


def _add(ruleset: int, access: int, path: str) -> None:
    place = os.open(path, os.O_PATH)
    try:
        allowed = access if os.path.isdir(path) else access & _OF_A_FILE
        kernel.landlock_add_path(ruleset, allowed, place)
    finally:
        os.close(place)
