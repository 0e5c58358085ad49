"""System calls that Python's library lacks. Each raises OSError if the kernel rejects it."""

from __future__ import annotations

import ctypes
import os
import signal
import struct

NEW_MOUNT, NEW_UTS, NEW_IPC = 0x20000, 0x4000000, 0x8000000
NEW_USER, NEW_PID, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000

READ_ONLY, NO_SUID, NO_DEVICES, NO_EXECUTION = 0x1, 0x2, 0x4, 0x8  # mount flags
BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 0x40000
_DETACH = 0x2

_SET_DEATH_SIGNAL, _SET_DUMPABLE, _DROP_BOUNDING, _NO_NEW_PRIVILEGES = 1, 4, 24, 38
_SET_SECCOMP, _SECCOMP_FILTER = 22, 2
SYSTEM_ADMINISTRATION = 21  # a capability
_CAPABILITY_VERSION_3 = 0x20080522

# numbers that are the same on all architectures
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 442, 444, 445, 446
_AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: int | bytes | None) -> int:
    result: int = getattr(_libc, name)(
        *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    )
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    _call("unshare", flags)


def enter_namespace(namespace: int, flags: int) -> None:
    """Call setns(2)."""
    _call("setns", namespace, flags)


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    kind_bytes = None if kind is None else kind.encode()
    _call("mount", os.fsencode(source), os.fsencode(target), kind_bytes, flags, data.encode())


def unmount(target: str) -> None:
    """Unmount a folder, even if it is in use: later processes do not see it."""
    _call("umount2", os.fsencode(target), _DETACH)


def set_mount_flags(target: str, flags: int) -> None:
    """Set the flags of a mount and of the mounts below it."""
    _change_mount_flags(target, flags, 0)


def clear_mount_flags(target: str, flags: int) -> None:
    """Clear the flags of a mount and of the mounts below it."""
    _change_mount_flags(target, 0, flags)


def _change_mount_flags(target: str, added: int, removed: int) -> None:
    attributes = struct.pack("=QQQQ", added, removed, 0, 0)
    descriptor = os.open(target, os.O_PATH)
    try:
        call_flags = _AT_EMPTY_PATH | _AT_RECURSIVE
        _call("syscall", _MOUNT_SETATTR, descriptor, b"", call_flags, attributes, len(attributes))
    finally:
        os.close(descriptor)


def change_root(folder: str) -> None:
    """Make a mounted folder the root, and detach the old root."""
    os.chdir(folder)
    _call("syscall", _PIVOT_ROOT[os.uname().machine], b".", b".")
    unmount(".")
    os.chdir("/")


def set_host_name(name: str) -> None:
    _call("sethostname", name.encode(), len(name))


def die_with_parent() -> None:
    _call("prctl", _SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def set_dumpable(dumpable: int) -> None:
    """Set whether processes of the same user may trace this process and write its /proc files."""
    _call("prctl", _SET_DUMPABLE, dumpable, 0, 0, 0)


def set_no_new_privileges() -> None:
    _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def has_capability(number: int) -> bool:
    """Return whether a capability of this process is effective."""
    data = ctypes.create_string_buffer(24)
    _call("capget", struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), ctypes.addressof(data))
    low, _, _, high, _, _ = struct.unpack("=6I", data.raw)
    return bool((high << 32 | low) >> number & 1)


def drop_capabilities() -> None:
    """Drop all capabilities permanently."""
    number = 0
    while True:
        try:
            _call("prctl", _DROP_BOUNDING, number, 0, 0, 0)
        except OSError:
            break  # the last capability that the kernel knows
        number += 1
    _call("capset", struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), struct.pack("=6I", *[0] * 6))


def set_seccomp_filter(program: bytes) -> None:
    """Set a BPF program, 8 bytes per instruction, as the filter of system calls."""
    buffer = ctypes.create_string_buffer(program, len(program))
    prog = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    _call("prctl", _SET_SECCOMP, _SECCOMP_FILTER, prog, 0, 0)


def landlock_version() -> int:
    """Return the version of the kernel's Landlock interface. Raises OSError if it is disabled."""
    return _call("syscall", _LANDLOCK_CREATE, None, 0, 1)


def landlock_create(attributes: bytes) -> int:
    return _call("syscall", _LANDLOCK_CREATE, attributes, len(attributes), 0)


def landlock_add_path(ruleset: int, access: int, path: int) -> None:
    _call("syscall", _LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", access, path), 0)


def landlock_restrict(ruleset: int) -> None:
    _call("syscall", _LANDLOCK_RESTRICT, ruleset, 0)
