"""First process of a terminal in our own sandbox: namespaces, a root of its own, and no privileges.

    python -m fieldcraft.extensions.sandbox.terminals.namespaces DISK_MB MEMORY_MB PROCESSES

The root is in memory and can be written. It contains the programs of this machine, read-only. The
outer process only waits for the inner one, which is the first of its namespace: when it exits, the
kernel kills all others. It reports {"missing": reason} or {"ready": true}, and then serves requests
(`command_server.py`).
"""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fieldcraft.extensions.sandbox import isolation, kernel, seccomp
from fieldcraft.extensions.sandbox.terminals.command_server import CommandServer, write_message

ROOT_ID = 0  # user as commands see it; it has no capabilities
_ROOT = "/tmp"  # where the new root is built
_SYSTEM_FOLDERS = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/etc/alternatives", "/etc/ssl", "/etc/ld.so.conf.d"),
)
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/nsswitch.conf", "/etc/os-release")
_OWN_FILES: Mapping[str, str] = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\n",
    "/etc/group": "root:x:0:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/hostname": "sandbox\n",
}
_FOLDERS = ("/dev/shm", "/home", "/mnt", "/opt", "/proc", "/root", "/run", "/srv", "/var/tmp")
_LINKS: Mapping[str, str] = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}
_NAMESPACES = (
    kernel.NEW_MOUNT | kernel.NEW_PID | kernel.NEW_NETWORK | kernel.NEW_IPC | kernel.NEW_UTS
)
_SET_INTERFACE_FLAGS, _INTERFACE_UP = 0x8914, 1
_INODES_PER_MIB = 256


def main() -> None:
    disk_mb, memory_mb, processes = map(int, sys.argv[1:])
    try:
        proc = os.open("/proc", os.O_PATH)
        is_root = _enter_namespaces(proc)
    except OSError as error:
        write_message({"missing": str(error)})
        return
    child = os.fork()
    if child:
        for stream in (0, 1):
            os.close(stream)
        os.waitpid(child, 0)
        return
    try:
        files = _read_system_files()
        _build_root(disk_mb, isolation.NOBODY_ID if is_root else ROOT_ID)
        if is_root:
            _become_nobody(proc)
        _fill_root(files)
        _drop_privileges(processes)
    except OSError as error:
        write_message({"missing": str(error)})
        return
    os.close(proc)
    write_message({"ready": True})
    CommandServer(memory_mb).serve()


def _enter_namespaces(proc: int) -> bool:
    """Enter new namespaces; the next child is the first process of one. Return whether this
    process is root, which the child must give up."""
    user, group = os.getuid(), os.getgid()
    if user != 0:
        flags = kernel.NEW_USER | _NAMESPACES
        isolation.enter_user_namespace(proc, flags, user, group, ROOT_ID)
    else:
        if not kernel.has_capability(kernel.SYSTEM_ADMINISTRATION):  # in a container
            isolation.enter_namespace_of_root(proc)
        kernel.unshare(_NAMESPACES)
    kernel.set_host_name("sandbox")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", _INTERFACE_UP)
        fcntl.ioctl(control, _SET_INTERFACE_FLAGS, request)
    return user == 0


def _read_system_files() -> dict[str, bytes]:
    return {path: Path(path).read_bytes() for path in _SYSTEM_FILES if os.path.isfile(path)}


def _build_root(disk_mb: int, owner: int) -> None:
    """Mount a root in memory that belongs to `owner`, with the system's folders, and enter it."""
    folders = [path for path in _SYSTEM_FOLDERS if os.path.isdir(path)]
    links = {path: os.readlink(path) for path in folders if os.path.islink(path)}
    # The new root hides the files below its mount point, so all folders are opened before.
    sources = {path: os.open(path, os.O_PATH) for path in (*folders, *isolation.DEVICES)}
    kernel.mount("none", "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    options = f"size={disk_mb}m,nr_inodes={disk_mb * _INODES_PER_MIB},mode=755"
    kernel.mount("none", _ROOT, "tmpfs", kernel.NO_SUID | kernel.NO_DEVICES, options)
    for path in (*(folder for folder in folders if folder not in links), *_FOLDERS):
        os.makedirs(_ROOT + path, exist_ok=True)
    for path in isolation.DEVICES:
        os.close(os.open(_ROOT + path, os.O_CREAT | os.O_WRONLY))
    for folder, _, _ in os.walk(_ROOT):
        os.chown(folder, owner, owner)
    for path, source in sources.items():
        if path not in links:
            target = _ROOT + path
            kernel.mount(f"/proc/self/fd/{source}", target, None, kernel.BIND | kernel.RECURSIVE)
            if path not in isolation.DEVICES:
                flags = kernel.READ_ONLY | kernel.NO_SUID | kernel.NO_DEVICES
                kernel.set_mount_flags(target, flags)
        os.close(source)
    for path, destination in {**links, **_LINKS}.items():
        os.symlink(destination, _ROOT + path)
    with suppress(OSError):  # a container that masks parts of its /proc allows no other one
        flags = kernel.NO_SUID | kernel.NO_DEVICES | kernel.NO_EXECUTION
        kernel.mount("proc", f"{_ROOT}/proc", "proc", flags)
    kernel.change_root(_ROOT)


def _become_nobody(proc: int) -> None:
    """Become nobody on the host, who is root in a new namespace."""
    nobody = isolation.NOBODY_ID
    os.setgroups([])
    os.setresgid(nobody, nobody, nobody)
    os.setresuid(nobody, nobody, nobody)
    kernel.set_dumpable(1)  # or its maps in /proc would belong to root
    isolation.enter_user_namespace(proc, kernel.NEW_USER, nobody, nobody, ROOT_ID)


def _fill_root(files: Mapping[str, bytes]) -> None:
    """Write what commands may change: some files of the system, and a folder for all users."""
    for path, content in files.items() | {
        (path, text.encode()) for path, text in _OWN_FILES.items()
    }:
        Path(path).write_bytes(content)
    os.mkdir("/tmp")
    for path in ("/tmp", "/var/tmp", "/dev/shm"):
        os.chmod(path, 0o1777)


def _drop_privileges(processes: int) -> None:
    # The kernel counts the processes of a user in each user namespace separately.
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    kernel.drop_capabilities()
    kernel.set_no_new_privileges()
    kernel.die_with_parent()  # changes of the user revoke it
    kernel.set_dumpable(0)  # commands, which have the same user, cannot open its descriptors
    kernel.set_seccomp_filter(seccomp.build_shell_filter())


if __name__ == "__main__":
    main()
