"""Seccomp filter of a sandboxed program: an allowlist of system calls, as a BPF program.

It checks only the number of a call and arguments in registers, so nothing can change between the
check and the call. seccomp's notifications cannot guarantee this.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from fieldcraft.extensions.sandbox.syscalls import (
    AARCH64,
    SHELL_AARCH64,
    SHELL_X86_64,
    X86_64,
)

_ARCHITECTURES: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "x86_64": (0xC000003E, X86_64),
    "aarch64": (0xC00000B7, AARCH64),
}
_SHELL_CALLS: Mapping[str, Mapping[str, int]] = {"x86_64": SHELL_X86_64, "aarch64": SHELL_AARCH64}
_LOAD, _AND, _EQUAL, _ABOVE, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW* flag of clone
_UNIX, _STREAM, _KIND = 1, 1, 0xF
_SHELL_ADDRESS_FAMILIES = (1, 2, 10, 16)  # Unix, IPv4, IPv6, netlink
_TERMINAL_QUERIES = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS FIONREAD FIONBIO FION/CLEX
_PRCTL_HARMLESS = (3, 15, 16, 39, 0x53564D41)  # dumpable? names, no_new_privs?, names of mappings

# F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_DUPFD_CLOEXEC F_GETPIPE_SZ
_DESCRIPTOR_COMMANDS = (0, 1, 2, 3, 4, 1030, 1032)
_LOCK_COMMANDS = (5, 6, 7)  # F_GETLK F_SETLK F_SETLKW

_BpfInstruction = bytes


def _make_instruction(
    opcode: int, value: int, jump_true: int = 0, jump_false: int = 0
) -> _BpfInstruction:
    return struct.pack("=HBBI", opcode, jump_true, jump_false, value)


def _load_argument(index: int) -> _BpfInstruction:
    """Load the low half of an argument."""
    return _make_instruction(_LOAD, _ARGUMENTS + 8 * index)


def _return_error(number: int = errno.EPERM) -> _BpfInstruction:
    return _make_instruction(_RETURN, _ERROR | number)


_ALLOW_CALL = _make_instruction(_RETURN, _ALLOW)
_NO_EFFECT = _make_instruction(_RETURN, _ERROR)  # the call succeeds, and nothing happens


def _allow_values(index: int, values: tuple[int, ...]) -> list[_BpfInstruction]:
    """Allow the call if an argument is one of the values."""
    checks = [
        _make_instruction(_EQUAL, value, len(values) - i, 0) for i, value in enumerate(values)
    ]
    return [_load_argument(index), *checks, _return_error(), _ALLOW_CALL]


def _allow_descriptor_commands() -> list[_BpfInstruction]:
    """Allow commands on descriptors, but neither larger pipes nor leases. Locks succeed without
    effect: on a file of the installation they would be a channel between programs, and SQLite needs
    them in private folders."""
    locks = [
        i
        for command in _LOCK_COMMANDS
        for i in (_make_instruction(_EQUAL, command, 0, 1), _NO_EFFECT)
    ]
    return [_load_argument(1), *locks, *_allow_values(1, _DESCRIPTOR_COMMANDS)]


def _allow_clone() -> list[_BpfInstruction]:
    return [
        _load_argument(0),
        _make_instruction(_ANY_BIT, _NEW_NAMESPACES, 0, 1),
        _return_error(),
        _ALLOW_CALL,
    ]


def _allow_stream_socketpair() -> list[_BpfInstruction]:
    """Allow only connected streams, because a datagram could be sent to any address."""
    return [
        _load_argument(0),
        _make_instruction(_EQUAL, _UNIX, 0, 3),
        _load_argument(1),
        _make_instruction(_AND, _KIND),
        _make_instruction(_EQUAL, _STREAM, 1, 0),
        _return_error(),
        _ALLOW_CALL,
    ]


_CHECKED_CALLS: Mapping[str, Callable[[], list[_BpfInstruction]]] = {
    "clone": _allow_clone,
    # Its flags are in memory, which a filter cannot read; libc then falls back to clone.
    "clone3": lambda: [_return_error(errno.ENOSYS)],
    "fcntl": _allow_descriptor_commands,
    "flock": lambda: [_NO_EFFECT],
    "ioctl": lambda: _allow_values(1, _TERMINAL_QUERIES),
    "prctl": lambda: _allow_values(0, _PRCTL_HARMLESS),
    "prlimit64": lambda: _allow_values(0, (0,)),  # not for other processes
    "socketpair": _allow_stream_socketpair,
}
# A terminal has its own files, network and IPC, so locks, ioctls and datagrams lead nowhere else.
_CHECKED_SHELL_CALLS: Mapping[str, Callable[[], list[_BpfInstruction]]] = {
    **{name: _CHECKED_CALLS[name] for name in ("clone", "clone3", "prctl", "prlimit64")},
    "socket": lambda: _allow_values(0, _SHELL_ADDRESS_FAMILIES),
}


def get_architecture() -> str:
    """Return the architecture of this machine. Raises OSError if its system calls are not
    listed."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    return machine


@cache  # built by the template and inherited by workers
def build_filter() -> bytes:
    """Build the filter for this machine. Raises OSError as `get_architecture` does."""
    return _assemble(_ARCHITECTURES[get_architecture()][1], _CHECKED_CALLS)


def build_shell_filter() -> bytes:
    """Build the filter of a terminal, in which all programs of the system can run. Raises OSError
    as `get_architecture` does."""
    machine = get_architecture()
    numbers = {**_ARCHITECTURES[machine][1], **_SHELL_CALLS[machine]}
    return _assemble(numbers, _CHECKED_SHELL_CALLS)


def _assemble(
    numbers: Mapping[str, int], checked_calls: Mapping[str, Callable[[], list[_BpfInstruction]]]
) -> bytes:
    """Return a program that allows the system calls of `numbers` on this machine, some of them
    only with certain arguments."""
    audit_architecture, _ = _ARCHITECTURES[get_architecture()]
    program = [
        _make_instruction(_LOAD, _ARCHITECTURE),
        _make_instruction(_EQUAL, audit_architecture, 1, 0),
        _make_instruction(_RETURN, _KILL),
        _make_instruction(_LOAD, _NUMBER),
    ]
    for first, last in _find_ranges(
        numbers[name] for name in numbers.keys() - checked_calls.keys()
    ):
        program += [
            _make_instruction(_AT_LEAST, first, 0, 2),
            _make_instruction(_ABOVE, last, 1, 0),
            _ALLOW_CALL,
        ]
    for name in sorted(numbers.keys() & checked_calls.keys()):
        body = checked_calls[name]()
        program += [_make_instruction(_EQUAL, numbers[name], 0, len(body)), *body]
    return b"".join([*program, _return_error()])


def _find_ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last number of each consecutive range. Ranges shorten the filter,
    which is compiled for each worker."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
