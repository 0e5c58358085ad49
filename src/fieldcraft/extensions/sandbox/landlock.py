"""Landlock: restrictions of the current process on files, ports and other processes.

Each feature needs a version of the kernel's interface, which is checked: common libraries silently
drop the features that an older kernel lacks.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence

from fieldcraft.extensions.sandbox import kernel

FILES, NETWORK, SCOPES = "landlock-files", "landlock-network", "landlock-scopes"
# first version with the feature: truncation of files; TCP; abstract sockets and signals
MIN_VERSIONS: Mapping[str, int] = {FILES: 3, NETWORK: 4, SCOPES: 6}
_IOCTL_VERSION = 5

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_ALL_FILE_RIGHTS = (1 << 15) - 1  # up to truncation
_DEVICE_IOCTL = 1 << 15
_FILE_RIGHTS = _WRITE_FILE | _READ_FILE | 1 << 14
_TCP, _SCOPES, _SIGNALS = 0b11, 0b11, 0b10
_MAKE_CHARACTER_DEVICE, _MAKE_SOCKET, _MAKE_BLOCK_DEVICE = 1 << 6, 1 << 9, 1 << 11
_WRITABLE_RIGHTS = _ALL_FILE_RIGHTS & ~(
    _EXECUTE | _MAKE_CHARACTER_DEVICE | _MAKE_SOCKET | _MAKE_BLOCK_DEVICE
)
_CHANGING_RIGHTS = _ALL_FILE_RIGHTS & ~(_EXECUTE | _READ_FILE | _READ_FOLDER)


def explain_missing(feature: str) -> str | None:
    """Return the reason why the kernel does not support a feature, or None."""
    try:
        version = kernel.landlock_version()
    except OSError as error:
        return f"Landlock is switched off ({error.strerror})"
    if version < MIN_VERSIONS[feature]:
        return f"the kernel's Landlock has version {version}, and {MIN_VERSIONS[feature]} is needed"
    return None


def restrict(features: Sequence[str], readable: Sequence[str], writable: Sequence[str]) -> None:
    """Restrict this process permanently.

    Args:
        features: keys of MIN_VERSIONS that the kernel supports, see `explain_missing`.
        readable: folders whose files can be read.
        writable: files, and folders in which everything but execution and special files is allowed.

    Raises OSError.
    """
    files = _ALL_FILE_RIGHTS | (_DEVICE_IOCTL if kernel.landlock_version() >= _IOCTL_VERSION else 0)
    handled = (
        files if FILES in features else 0,
        _TCP if NETWORK in features else 0,
        _SCOPES if SCOPES in features else 0,
    )
    ruleset = _create_ruleset(handled)
    try:
        if FILES in features:
            for folder in readable:
                _add_rule(ruleset, _READ_FILE | _READ_FOLDER, folder)
            for folder in writable:
                _add_rule(ruleset, _WRITABLE_RIGHTS, folder)
        kernel.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)


def restrict_changes(writable: Sequence[str]) -> None:
    """Restrict this process and its descendants permanently: they can change these files and
    folders only, but read and execute everything. If the kernel supports it, they cannot send
    signals to other processes. Needs FILES. Raises OSError."""
    ruleset = _create_ruleset((_CHANGING_RIGHTS, 0, _SIGNALS))
    try:
        for path in writable:
            _add_rule(ruleset, _CHANGING_RIGHTS, path)
        kernel.set_no_new_privileges()
        kernel.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)


def _create_ruleset(handled: Sequence[int]) -> int:
    """Create a ruleset that restricts the given rights to files, ports and scopes, as far as the
    kernel knows them."""
    version = kernel.landlock_version()
    num_known = sum(version >= needed for needed in MIN_VERSIONS.values())
    return kernel.landlock_create(struct.pack(f"={num_known}Q", *handled[:num_known]))


def _add_rule(ruleset: int, access: int, path: str) -> None:
    descriptor = os.open(path, os.O_PATH)
    try:
        allowed = access if os.path.isdir(path) else access & _FILE_RIGHTS
        kernel.landlock_add_path(ruleset, allowed, descriptor)
    finally:
        os.close(descriptor)
