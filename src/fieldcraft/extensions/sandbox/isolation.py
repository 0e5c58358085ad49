"""Isolation of the current process. The template does the first half, each worker the second.

The template builds a root that contains only the Python installation of the host, and moves into it
permanently. A worker, which is forked from it, then gets its own namespaces and private folder, and
drops all privileges.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Collection, Sequence

from fieldcraft.extensions.sandbox import kernel, landlock, seccomp
from fieldcraft.extensions.sandbox.layers import HOSTNAME, IPC, NETWORK, SECCOMP
from fieldcraft.extensions.sandbox.limits import MIB, SandboxLimits

SANDBOX_ID = 1000  # user and group as the program sees them
NOBODY_ID = 65534  # user that root switches to before untrusted code runs
HOME, TEMPORARY, SHARED_MEMORY = "/home/sandbox", "/tmp", "/dev/shm"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# Replacements of the standard streams, without /proc: a file, and two named pipes.
STDIN, STDOUT, STDERR = STREAMS = tuple(
    f"{SHARED_MEMORY}/{name}" for name in ("stdin", "stdout", "stderr")
)
DESCRIPTOR_FOLDERS = "/dev/fd", "/proc/self/fd"
_ROOT = "/tmp"  # where the new root is built, hidden from other processes
_INODES_PER_MIB = 256


def list_private_folders(folders: Sequence[str]) -> list[str]:
    """Return the folders that a program may write to. /tmp is excluded if Python is installed in
    it."""
    tmp_is_used = any(folder.startswith(f"{TEMPORARY}/") for folder in folders)
    return [HOME, SHARED_MEMORY] if tmp_is_used else [HOME, SHARED_MEMORY, TEMPORARY]


class LayerUnavailableError(Exception):
    """The system does not support a layer."""

    def __init__(self, layer: str, error: OSError) -> None:
        super().__init__(layer, error.strerror)
        self.layer = layer
        self.reason = error.strerror or str(error)


def _apply_layer(layer: str, action: Callable[[], object]) -> None:
    try:
        action()
    except OSError as error:
        raise LayerUnavailableError(layer, error) from error


def isolate_zygote(folders: Sequence[str], links: dict[str, str]) -> int:
    """Move this process into a root that contains only some folders of the host, read-only.

    Args:
        folders: absolute paths, mounted at the same paths.
        links: symbolic links of the root, such as /lib -> usr/lib.

    Returns a descriptor of the host's /proc, through which workers write their user id maps. The
    next child is the first process of a new namespace.

    Raises LayerUnavailableError.
    """
    proc = os.open("/proc", os.O_PATH)
    user, group = os.getuid(), os.getgid()
    if user == 0 and not kernel.has_capability(kernel.SYSTEM_ADMINISTRATION):  # in a container
        _apply_layer("user", lambda: enter_namespace_of_root(proc))
    if user != 0:
        _apply_layer("user", lambda: enter_user_namespace(proc, kernel.NEW_USER, user, group))
    _apply_layer("mount", lambda: kernel.unshare(kernel.NEW_MOUNT))
    _apply_layer("mount", lambda: _build_root(folders, links))
    if user == 0:
        os.setgroups([])
        os.setresgid(NOBODY_ID, NOBODY_ID, NOBODY_ID)
        os.setresuid(NOBODY_ID, NOBODY_ID, NOBODY_ID)
        kernel.set_dumpable(1)  # or its maps in /proc would belong to root
        _apply_layer(
            "user", lambda: enter_user_namespace(proc, kernel.NEW_USER, NOBODY_ID, NOBODY_ID)
        )
        _apply_layer("mount", lambda: kernel.unshare(kernel.NEW_MOUNT))
    _apply_layer("pid", lambda: kernel.unshare(kernel.NEW_PID))
    return proc


def enter_namespace_of_root(proc: int) -> None:
    """Enter a user namespace in which root, with all capabilities, and nobody are themselves. A
    process outside writes its maps, which have two entries: only root of the outside may."""
    process, (reader, writer) = os.getpid(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        try:
            os.read(reader, 1)
            text = f"0 0 1\n{NOBODY_ID} {NOBODY_ID} 1".encode()
            for name in ("uid_map", "gid_map"):
                os.write(os.open(f"{process}/{name}", os.O_WRONLY, dir_fd=proc), text)
        finally:  # an error shows in the parent, which has no user id then
            os._exit(0)
    os.close(reader)
    try:
        kernel.unshare(kernel.NEW_USER)
        os.write(writer, b".")
    finally:
        os.close(writer)
        os.waitpid(child, 0)
    if os.getuid() != 0:  # the maps were refused
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def enter_user_namespace(
    proc: int, flags: int, user: int, group: int, inner_id: int = SANDBOX_ID
) -> None:
    """Enter a new user namespace, in which this process is `inner_id` with all capabilities."""
    kernel.unshare(flags)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inner_id} {user} 1"),
        ("gid_map", f"{inner_id} {group} 1"),
    ):
        file = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)


def _build_root(folders: Sequence[str], links: dict[str, str]) -> None:
    # The new root hides the files below its mount point, so all folders are opened before.
    sources = {path: os.open(path, os.O_PATH) for path in (*folders, *DEVICES)}
    kernel.mount("none", "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    kernel.mount("none", _ROOT, "tmpfs", kernel.NO_SUID, "size=1m,mode=755")
    for path, source in sources.items():
        target = _ROOT + path
        if path in DEVICES:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        else:
            os.makedirs(target, exist_ok=True)
        kernel.mount(f"/proc/self/fd/{source}", target, None, kernel.BIND | kernel.RECURSIVE)
        os.close(source)
        if path not in DEVICES:
            kernel.set_mount_flags(target, kernel.NO_DEVICES)
    for path in (*list_private_folders(folders), "/mnt"):
        os.makedirs(_ROOT + path, exist_ok=True)
    for folder in DESCRIPTOR_FOLDERS:
        os.makedirs(_ROOT + folder)
    for path, destination in (links | _stream_links()).items():
        os.symlink(destination, _ROOT + path)
    for folder in DESCRIPTOR_FOLDERS:  # their listing would be mistaken for the open descriptors
        os.chmod(_ROOT + folder, 0o111)
    kernel.change_root(_ROOT)
    kernel.set_mount_flags("/", kernel.READ_ONLY | kernel.NO_SUID)


def _stream_links() -> dict[str, str]:
    """Return the target of every name of a standard stream."""
    folders = {
        f"{folder}/{number}": stream
        for folder in DESCRIPTOR_FOLDERS
        for number, stream in enumerate(STREAMS)
    }
    return folders | {f"/dev/{os.path.basename(stream)}": stream for stream in STREAMS}


def isolate_worker(
    proc: int,
    private_folders: Sequence[str],
    limits: SandboxLimits,
    waive: Collection[str],
    open_descriptors: Collection[int],
) -> None:
    """Isolate this process, a child of the template, permanently.

    Args:
        proc: result of `isolate_zygote`; closed unless it is in `open_descriptors`.
        private_folders: paths of the private folders.
        limits: limits of the whole run, which include the size of the private folders.
        waive: layers that may be missing.
        open_descriptors: descriptors that stay open.

    Raises LayerUnavailableError.
    """
    for layer, enter in list_worker_layers(proc, private_folders, limits):
        if layer not in waive:
            _apply_layer(layer, enter)
    close_other_descriptors(open_descriptors)


def list_worker_layers(
    proc: int, private_folders: Sequence[str], limits: SandboxLimits
) -> list[tuple[str, Callable[[], object]]]:
    """Return the steps of `isolate_worker` in order. A failing layer does not affect the others."""
    return [
        ("user", lambda: enter_user_namespace(proc, kernel.NEW_USER, SANDBOX_ID, SANDBOX_ID)),
        (NETWORK, lambda: kernel.unshare(kernel.NEW_NETWORK)),
        (IPC, lambda: kernel.unshare(kernel.NEW_IPC)),
        (HOSTNAME, _set_host_name),
        ("mount", lambda: _mount_private_folders(private_folders, limits)),
        ("user", _drop_privileges),
        (landlock.FILES, lambda: _apply_landlock(landlock.FILES, private_folders)),
        (landlock.NETWORK, lambda: _apply_landlock(landlock.NETWORK, private_folders)),
        (landlock.SCOPES, lambda: _apply_landlock(landlock.SCOPES, private_folders)),
        (SECCOMP, lambda: kernel.set_seccomp_filter(seccomp.build_filter())),
    ]


def _set_host_name() -> None:
    kernel.unshare(kernel.NEW_UTS)
    kernel.set_host_name("sandbox")


def _mount_private_folders(private_folders: Sequence[str], limits: SandboxLimits) -> None:
    """Mount one in-memory file system, so that its size limits all private folders together."""
    kernel.unshare(kernel.NEW_MOUNT)
    flags = kernel.NO_SUID | kernel.NO_DEVICES | kernel.NO_EXECUTION
    inodes = limits.disk_mb * _INODES_PER_MIB
    kernel.mount("none", "/mnt", "tmpfs", flags, f"size={limits.disk_mb}m,nr_inodes={inodes}")
    for folder in private_folders:
        source = "/mnt/" + os.path.basename(folder)
        os.mkdir(source, 0o700)
        kernel.mount(source, folder, None, kernel.BIND)
    kernel.unmount("/mnt")
    for stream in (STDOUT, STDERR):
        os.mkfifo(stream, 0o600)
    os.chdir(HOME)


def _drop_privileges() -> None:
    kernel.drop_capabilities()
    kernel.set_no_new_privileges()


def _apply_landlock(feature: str, private_folders: Sequence[str]) -> None:
    if reason := landlock.explain_missing(feature):
        raise OSError(0, reason)
    landlock.restrict([feature], readable=("/",), writable=(*private_folders, "/dev/null"))


def redirect_to_pipes() -> list[int]:
    """Redirect the output of this worker to its named pipes, and return descriptors to read
    them."""
    readers = [os.open(stream, os.O_RDONLY | os.O_NONBLOCK) for stream in (STDOUT, STDERR)]
    for number, stream in ((1, STDOUT), (2, STDERR)):
        writer = os.open(stream, os.O_WRONLY)
        os.dup2(writer, number)
        os.close(writer)
    return readers


def close_other_descriptors(open_descriptors: Collection[int]) -> None:
    """Close every other descriptor of this process."""
    low = 0
    for descriptor in sorted(open_descriptors):
        if low < descriptor:  # an empty range would close all descriptors
            os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def set_program_limits(limits: SandboxLimits, idle_bytes: int) -> None:
    """Set the limits of the program's process, which its children inherit."""
    rlimits = {
        resource.RLIMIT_AS: idle_bytes + limits.memory_mb * MIB,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_FSIZE: limits.file_mb * MIB,
        resource.RLIMIT_NOFILE: 64,  # the kernel buffers 200 KiB for a socket, counted nowhere
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for kind, value in rlimits.items():
        resource.setrlimit(kind, (value, value))
