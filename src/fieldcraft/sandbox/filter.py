"""The seccomp filter of a sandboxed program: a list of what is allowed, as a BPF program.

It looks at the number of a call and at arguments in registers only, so nothing can change between
the check and the call. seccomp's notifications cannot promise that.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from fieldcraft.sandbox.numbers import AARCH64, X86_64

_AUDIT: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "x86_64": (0xC000003E, X86_64),
    "aarch64": (0xC00000B7, AARCH64),
}
_LOAD, _AND, _EQUAL, _ABOVE, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW* flag of clone
_UNIX, _STREAM, _KIND = 1, 1, 0xF
_TERMINAL_QUERIES = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS FIONREAD FIONBIO FION/CLEX
_PRCTL_HARMLESS = (3, 15, 16, 39, 0x53564D41)  # dumpable? names, no_new_privs?, names of mappings

# F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_DUPFD_CLOEXEC F_GETPIPE_SZ
_DESCRIPTOR_COMMANDS = (0, 1, 2, 3, 4, 1030, 1032)
_LOCK_COMMANDS = (5, 6, 7)  # F_GETLK F_SETLK F_SETLKW

_Instruction = bytes


def _do(code: int, value: int, yes: int = 0, no: int = 0) -> _Instruction:
    return struct.pack("=HBBI", code, yes, no, value)


def _argument(index: int) -> _Instruction:
    """Load the low half of an argument."""
    return _do(_LOAD, _ARGUMENTS + 8 * index)


def _refuse(number: int = errno.EPERM) -> _Instruction:
    return _do(_RETURN, _ERROR | number)


_OK = _do(_RETURN, _ALLOW)
_NO_EFFECT = _do(_RETURN, _ERROR)  # the call succeeds, and nothing happens


def _one_of(index: int, values: tuple[int, ...]) -> list[_Instruction]:
    """Allow the call if an argument is one of the values."""
    checks = [_do(_EQUAL, value, len(values) - i, 0) for i, value in enumerate(values)]
    return [_argument(index), *checks, _refuse(), _OK]


def _descriptor_commands() -> list[_Instruction]:
    """Allow commands on descriptors, but neither larger pipes nor leases. Locks succeed without
    effect: on a file of the installation they would tell one program about another, and SQLite asks
    for them in private folders."""
    locks = [i for command in _LOCK_COMMANDS for i in (_do(_EQUAL, command, 0, 1), _NO_EFFECT)]
    return [_argument(1), *locks, *_one_of(1, _DESCRIPTOR_COMMANDS)]


def _clone() -> list[_Instruction]:
    return [_argument(0), _do(_ANY_BIT, _NEW_NAMESPACES, 0, 1), _refuse(), _OK]


def _socket_pair() -> list[_Instruction]:
    """Allow only connected streams: a datagram could be sent to any address."""
    return [
        _argument(0),
        _do(_EQUAL, _UNIX, 0, 3),
        _argument(1),
        _do(_AND, _KIND),
        _do(_EQUAL, _STREAM, 1, 0),
        _refuse(),
        _OK,
    ]


_CHECKED: Mapping[str, Callable[[], list[_Instruction]]] = {
    "clone": _clone,
    # Its flags are in memory, which a filter cannot read; libc then falls back to clone.
    "clone3": lambda: [_refuse(errno.ENOSYS)],
    "fcntl": _descriptor_commands,
    "flock": lambda: [_NO_EFFECT],
    "ioctl": lambda: _one_of(1, _TERMINAL_QUERIES),
    "prctl": lambda: _one_of(0, _PRCTL_HARMLESS),
    "prlimit64": lambda: _one_of(0, (0,)),  # not of other processes
    "socketpair": _socket_pair,
}


def architecture() -> str:
    """Return the architecture of this machine. Raises OSError for one whose system calls are not
    known here."""
    machine = os.uname().machine
    if machine not in _AUDIT:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    return machine


@cache  # the template makes it, and workers inherit it
def build() -> bytes:
    """Build the filter for this machine. Raises OSError as `architecture` does."""
    audit, numbers = _AUDIT[architecture()]
    program = [
        _do(_LOAD, _ARCHITECTURE),
        _do(_EQUAL, audit, 1, 0),
        _do(_RETURN, _KILL),
        _do(_LOAD, _NUMBER),
    ]
    for first, last in _ranges(numbers[name] for name in numbers.keys() - _CHECKED.keys()):
        program += [_do(_AT_LEAST, first, 0, 2), _do(_ABOVE, last, 1, 0), _OK]
    for name in sorted(numbers.keys() & _CHECKED.keys()):
        body = _CHECKED[name]()
        program += [_do(_EQUAL, numbers[name], 0, len(body)), *body]
    return b"".join([*program, _refuse()])


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last of all runs of neighbours. A filter is compiled for each
    worker, and the longer it is, the longer that takes."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
