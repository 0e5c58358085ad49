"""Start Python as an older kernel would, or one that forbids user namespaces.

    python older_kernel.py CHANGE ARGUMENT...      (the arguments of Python)

A seccomp filter changes the answers of system calls, for the process and all that it starts:
    landlock-N      Landlock has version N: calls with a longer structure fail, as in that kernel
    landlock-none   Landlock is not part of the kernel (RHEL 9), or switched off at its start
    no-user         user namespaces are forbidden, as by Docker
    no-mount        they have no capabilities, as with Ubuntu's AppArmor
    no-mount-flags  mount_setattr is missing: Linux 5.11
    container-root  root may not mount, as in a container that allows user namespaces
"""

import array
import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

_NUMBERS = {
    "x86_64": {"unshare": 272, "mount": 165},
    "aarch64": {"unshare": 97, "mount": 40},
}[os.uname().machine]
_MOUNT_SETATTR, _LANDLOCK_CREATE, _NEW_USER = 442, 444, 0x10000000
_SECCOMP = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
_ALLOW, _ERROR, _ASK = 0x7FFF0000, 0x00050000, 0x7FC00000
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # ioctls of a listener
_ATTRIBUTE_BYTES = {1: 8, 2: 8, 3: 8, 4: 16, 5: 16}  # of the structure of each Landlock version
_libc = ctypes.CDLL(None, use_errno=True)


def write_interpreter(folder: Path, change: str) -> str:
    """Write a program that starts this Python with a change, and return its path."""
    file = folder / change
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {change} "$@"\n')
    file.chmod(0o755)
    return str(file)


def _install(instructions: list[tuple[int, int, int, int]], flags: int) -> int:
    program = b"".join(struct.pack("=HBBI", *each) for each in instructions)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(instructions), ctypes.addressof(buffer))
    assert _libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges, which a filter needs
    listener = _libc.syscall(_SECCOMP, 1, flags, header)
    assert listener >= 0, os.strerror(ctypes.get_errno())
    return listener


def _filter_call(number: int, action: int, any_bit: int = 0) -> list[tuple[int, int, int, int]]:
    """Apply an action to one call; with `any_bit`, if its first argument has one of these bits."""
    check = [(0x20, 0, 0, 16), (0x45, 0, 1, any_bit)] if any_bit else []
    return [
        (0x20, 0, 0, 0),
        (0x15, 0, len(check) + 1, number),
        *check,
        (0x06, 0, 0, action),
        (0x06, 0, 0, _ALLOW),
    ]


def _answer(channel: socket.socket, version: int) -> None:
    """Answer for the kernel until all processes with the filter have ended."""
    message, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(4))
    listener = array.array("i", ancillary[0][2])[0]
    channel.close()
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while message and not poll.poll()[0][1] & select.POLLHUP:
        call = bytearray(80)
        try:
            fcntl.ioctl(listener, _RECEIVE, call)
        except OSError as error:
            if error.errno == errno.ENOENT:  # the asking process was killed
                continue
            raise
        (number,) = struct.unpack_from("=Q", call)
        _, size, flags = struct.unpack_from("=QQQ", call, 32)  # the arguments of the call
        value, code, forward = 0, 0, 0
        if flags == 1:
            value = version
        elif size > _ATTRIBUTE_BYTES[version]:
            code = -errno.E2BIG
        else:
            forward = 1
        try:
            fcntl.ioctl(listener, _SEND, struct.pack("=QqiI", number, value, code, forward))
        except OSError as error:
            if error.errno != errno.ENOENT:  # the asking process was killed
                raise


def _emulate_landlock(version: int) -> None:
    inner, outer = socket.socketpair()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:  # not a child of the process, so that it is none of the sandbox's
            others = [*map(int, os.listdir("/proc/self/fd"))]
            for descriptor in others:  # the pipes of the sandbox's owner, which waits for their end
                if descriptor != inner.fileno():
                    with suppress(OSError):
                        os.close(descriptor)
            _answer(inner, version)
        os._exit(0)
    os.waitpid(child, 0)
    listener = _install(_filter_call(_LANDLOCK_CREATE, _ASK), 8)
    socket.send_fds(outer, [b"."], [listener])
    os.close(listener)


def _drop_mounting() -> None:
    """Drop the capability CAP_SYS_ADMIN."""
    header, data = struct.pack("=Ii", 0x20080522, 0), bytearray(24)
    buffer = (ctypes.c_char * 24).from_buffer(data)
    assert _libc.prctl(24, 21, 0, 0, 0) == 0
    assert _libc.capget(header, buffer) == 0
    words = [
        word & ~(1 << 21) if i < 3 else word for i, word in enumerate(struct.unpack("=6I", data))
    ]
    assert _libc.capset(header, struct.pack("=6I", *words)) == 0


def main() -> None:
    change, *arguments = sys.argv[1:]
    simple = {
        "landlock-none": (_LANDLOCK_CREATE, errno.ENOSYS, 0),
        "no-user": (_NUMBERS["unshare"], errno.EPERM, _NEW_USER),
        "no-mount": (_NUMBERS["mount"], errno.EACCES, 0),
        "no-mount-flags": (_MOUNT_SETATTR, errno.ENOSYS, 0),
    }
    if change in simple:
        number, code, any_bit = simple[change]
        _install(_filter_call(number, _ERROR | code, any_bit), 0)
    elif change == "container-root":
        _drop_mounting()
    else:
        _emulate_landlock(int(change.removeprefix("landlock-")))
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
