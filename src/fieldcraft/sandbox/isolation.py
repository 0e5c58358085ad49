"""Isolation that a process takes on. The template does the first half, each worker the second.

The template builds a root that holds the Python installation and nothing else of the host, and
moves into it for good. A worker, which is forked from it, then gets namespaces and a private folder
of its own and gives up every right.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Collection, Sequence

from fieldcraft.sandbox import filter as seccomp
from fieldcraft.sandbox import kernel, landlock
from fieldcraft.sandbox.layers import HOSTNAME, IPC, NETWORK, SECCOMP
from fieldcraft.sandbox.limits import MIB, Limits

INSIDE = 1000  # user and group as the program sees them
NOBODY = 65534  # who root becomes before anything untrusted runs
HOME, TEMPORARY, SHARED_MEMORY = "/home/sandbox", "/tmp", "/dev/shm"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# Without /proc, what the standard streams can be opened by: a file, and two named pipes.
STDIN, STDOUT, STDERR = STREAMS = tuple(
    f"{SHARED_MEMORY}/{name}" for name in ("stdin", "stdout", "stderr")
)
DESCRIPTORS = "/dev/fd", "/proc/self/fd"
_ROOT = "/tmp"  # where the new root is put together, hidden from everybody else
_INODES_PER_MIB = 256


def private_places(folders: Sequence[str]) -> list[str]:
    """Return the folders that a program may write to. /tmp is none of them where Python is
    installed in it."""
    taken = any(folder.startswith(f"{TEMPORARY}/") for folder in folders)
    return [HOME, SHARED_MEMORY] if taken else [HOME, SHARED_MEMORY, TEMPORARY]


class Refused(Exception):
    """The system refuses a layer."""

    def __init__(self, layer: str, error: OSError) -> None:
        super().__init__(layer, error.strerror)
        self.layer = layer
        self.reason = error.strerror or str(error)


def _or_refuse(layer: str, action: Callable[[], object]) -> None:
    try:
        action()
    except OSError as error:
        raise Refused(layer, error) from error


def enter_template(folders: Sequence[str], links: dict[str, str]) -> int:
    """Move this process into a root with nothing but some folders of the host, read-only.

    Args:
        folders: absolute paths, bound where they are.
        links: symbolic links of the root, as in /lib -> usr/lib.

    Returns a descriptor of the host's /proc, through which workers write their maps of users. The
    next child is the first process of a new namespace.

    Raises Refused.
    """
    proc = os.open("/proc", os.O_PATH)
    user, group = os.getuid(), os.getgid()
    if user == 0:
        _or_refuse("mount", lambda: kernel.unshare(kernel.NEW_MOUNT))
    else:
        _or_refuse("user", lambda: _new_user(proc, kernel.NEW_USER, user, group))
        _or_refuse("mount", lambda: kernel.unshare(kernel.NEW_MOUNT))
    _or_refuse("mount", lambda: _build_root(folders, links))
    if user == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        kernel.set_dumpable(1)  # or its maps in /proc would be root's
        _or_refuse("user", lambda: _new_user(proc, kernel.NEW_USER, NOBODY, NOBODY))
        _or_refuse("mount", lambda: kernel.unshare(kernel.NEW_MOUNT))
    _or_refuse("pid", lambda: kernel.unshare(kernel.NEW_PID))
    return proc


def _new_user(proc: int, flags: int, user: int, group: int) -> None:
    """Enter a new user namespace, in which this process is INSIDE and may do everything."""
    kernel.unshare(flags)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{INSIDE} {user} 1"),
        ("gid_map", f"{INSIDE} {group} 1"),
    ):
        file = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)


def _build_root(folders: Sequence[str], links: dict[str, str]) -> None:
    # The new root hides what is below its place, so everything is opened before.
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
    for path in (*private_places(folders), "/mnt"):
        os.makedirs(_ROOT + path, exist_ok=True)
    for folder in DESCRIPTORS:
        os.makedirs(_ROOT + folder)
    for path, destination in (links | _stream_links()).items():
        os.symlink(destination, _ROOT + path)
    for folder in DESCRIPTORS:  # what is listed there would be taken for all that is open
        os.chmod(_ROOT + folder, 0o111)
    kernel.change_root(_ROOT)
    kernel.set_mount_flags("/", kernel.READ_ONLY | kernel.NO_SUID)


def _stream_links() -> dict[str, str]:
    """Return every name of a standard stream, and where it is."""
    folders = {
        f"{folder}/{number}": stream
        for folder in DESCRIPTORS
        for number, stream in enumerate(STREAMS)
    }
    return folders | {f"/dev/{os.path.basename(stream)}": stream for stream in STREAMS}


def enter_worker(
    proc: int,
    places: Sequence[str],
    limits: Limits,
    waive: Collection[str],
    keep: Collection[int],
) -> None:
    """Isolate this process, a child of the template's, for good.

    Args:
        proc: what `enter_template` returned; it is closed with all that is not kept.
        places: the private folders.
        limits: those of the whole run: size of the private folders.
        waive: layers to do without.
        keep: descriptors that stay open.

    Raises Refused.
    """
    for layer, enter in worker_layers(proc, places, limits):
        if layer not in waive:
            _or_refuse(layer, enter)
    close_all_but(keep)


def worker_layers(
    proc: int, places: Sequence[str], limits: Limits
) -> list[tuple[str, Callable[[], object]]]:
    """Return the steps of `enter_worker` in their order. A layer that is refused spoils no
    other."""
    return [
        ("user", lambda: _new_user(proc, kernel.NEW_USER, INSIDE, INSIDE)),
        (NETWORK, lambda: kernel.unshare(kernel.NEW_NETWORK)),
        (IPC, lambda: kernel.unshare(kernel.NEW_IPC)),
        (HOSTNAME, _own_host_name),
        ("mount", lambda: _own_folders(places, limits)),
        ("user", _give_up_rights),
        (landlock.FILES, lambda: _landlock(landlock.FILES, places)),
        (landlock.NETWORK, lambda: _landlock(landlock.NETWORK, places)),
        (landlock.SCOPES, lambda: _landlock(landlock.SCOPES, places)),
        (SECCOMP, lambda: kernel.set_seccomp_filter(seccomp.build())),
    ]


def _own_host_name() -> None:
    kernel.unshare(kernel.NEW_UTS)
    kernel.set_host_name("sandbox")


def _own_folders(places: Sequence[str], limits: Limits) -> None:
    """Mount one file system in memory, so that its size limits all private folders together."""
    kernel.unshare(kernel.NEW_MOUNT)
    flags = kernel.NO_SUID | kernel.NO_DEVICES | kernel.NO_EXECUTION
    inodes = limits.disk_mb * _INODES_PER_MIB
    kernel.mount("none", "/mnt", "tmpfs", flags, f"size={limits.disk_mb}m,nr_inodes={inodes}")
    for place in places:
        source = "/mnt/" + os.path.basename(place)
        os.mkdir(source, 0o700)
        kernel.mount(source, place, None, kernel.BIND)
    kernel.unmount("/mnt")
    for stream in (STDOUT, STDERR):
        os.mkfifo(stream, 0o600)
    os.chdir(HOME)


def _give_up_rights() -> None:
    kernel.drop_capabilities()
    kernel.gain_no_privileges()


def _landlock(part: str, places: Sequence[str]) -> None:
    if reason := landlock.missing(part):
        raise OSError(0, reason)
    landlock.restrict([part], readable=("/",), writable=(*places, "/dev/null"))


def write_to_streams() -> list[int]:
    """Let the named pipes of this worker be its output, and return descriptors to read them by."""
    readers = [os.open(stream, os.O_RDONLY | os.O_NONBLOCK) for stream in (STDOUT, STDERR)]
    for number, stream in ((1, STDOUT), (2, STDERR)):
        writer = os.open(stream, os.O_WRONLY)
        os.dup2(writer, number)
        os.close(writer)
    return readers


def close_all_but(keep: Collection[int]) -> None:
    """Close every other descriptor of this process."""
    low = 0
    for descriptor in sorted(keep):
        if low < descriptor:  # an empty range closes all there are
            os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def limit_program(limits: Limits, idle_bytes: int) -> None:
    """Set the limits of the program's process, which its children inherit."""
    most = {
        resource.RLIMIT_AS: idle_bytes + limits.memory_mb * MIB,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_FSIZE: limits.file_mb * MIB,
        resource.RLIMIT_NOFILE: 64,  # the kernel buffers 200 KiB for a socket, counted nowhere
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for kind, value in most.items():
        resource.setrlimit(kind, (value, value))
