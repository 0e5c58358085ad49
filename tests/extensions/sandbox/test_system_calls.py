"""Escapes by system calls that no ordinary program needs: the kernel rejects each of them."""

import os

import pytest

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86-64")

NULL = "None"
PATH = 'b"/"'
CALLS = {
    "ptrace": (101, "16, 1, 0, 0"),
    "process_vm_readv": (310, "1, None, 0, None, 0, 0"),
    "process_vm_writev": (311, "1, None, 0, None, 0, 0"),
    "process_madvise": (440, "0, None, 0, 0, 0"),
    "kcmp": (312, "1, 2, 0, 0, 0"),
    "pidfd_open": (434, "1, 0"),
    "pidfd_getfd": (438, "0, 0, 0"),
    "pidfd_send_signal": (424, "0, 0, None, 0"),
    "rt_sigqueueinfo": (129, "1, 0, None"),
    "prlimit of the first process": (302, "1, 0, None, None"),
    "io_uring_setup": (425, "1, buffer"),
    "io_uring_enter": (426, "0, 0, 0, 0, None, 0"),
    "io_uring_register": (427, "0, 0, None, 0"),
    "add_key": (248, 'b"user", b"a", b"b", 1, -3'),
    "request_key": (249, 'b"user", b"a", None, -3'),
    "keyctl": (250, "0, -3, 0"),
    "bpf": (321, "0, buffer, 128"),
    "perf_event_open": (298, "buffer, 0, -1, -1, 0"),
    "userfaultfd": (323, "1"),
    "memfd_secret": (447, "0"),
    "personality": (135, "0x0040000"),
    "mount": (165, 'b"none", b"/tmp", b"tmpfs", 0, None'),
    "umount2": (166, 'b"/tmp", 2'),
    "chroot": (161, PATH),
    "pivot_root": (155, f"{PATH}, {PATH}"),
    "fsopen": (430, 'b"tmpfs", 0'),
    "fsmount": (432, "0, 0, 0"),
    "open_tree": (428, f"-100, {PATH}, 1"),
    "move_mount": (429, f"-100, {PATH}, -100, {PATH}, 0"),
    "mount_setattr": (442, f"-100, {PATH}, 0, buffer, 32"),
    "unshare user": (272, "0x10000000"),
    "unshare network": (272, "0x40000000"),
    "setns": (308, "0, 0"),
    "clone into a user namespace": (56, "0x10000011, None, None, None, 0"),
    "clone into a pid namespace": (56, "0x20000011, None, None, None, 0"),
    "clone3": (435, "buffer, 88"),
    "execve": (59, 'b"/bin/sh", None, None'),
    "execveat": (322, '0, b"", None, None, 0x1000'),
    "setuid": (105, "0"),
    "setgid": (106, "0"),
    "setresuid": (117, "0, 0, 0"),
    "setgroups": (116, "0, None"),
    "capset": (126, "buffer, buffer"),
    "kexec_load": (246, "0, 0, None, 0xFFFF0000"),
    "kexec_file_load": (320, "-1, -1, 0, None, 0"),
    "reboot, with wrong magic numbers": (169, "0, 0, 0, None"),
    "init_module": (175, 'None, 0, b""'),
    "finit_module": (313, '-1, b"", 0'),
    "delete_module": (176, 'b"none", 0'),
    "syslog": (103, "3, buffer, 10"),
    "acct": (163, "None"),
    "swapon": (167, 'b"/none", 0'),
    "settimeofday": (164, "None, None"),
    "clock_settime": (227, "0, None"),
    "adjtimex": (159, "None"),
    "sethostname": (170, 'b"a", 1'),
    "setdomainname": (171, 'b"a", 1'),
    "quotactl": (179, "0, None, 0, None"),
    "iopl": (172, "3"),
    "ioperm": (173, "0, 1, 1"),
    "modify_ldt": (154, "0, buffer, 16"),
    "shmget": (29, "0, 4096, 0o1600"),
    "msgget": (68, "0, 0o1600"),
    "semget": (64, "0, 1, 0o1600"),
    "mq_open": (240, 'b"a", 0o102, 0o600, None'),
    "name_to_handle_at": (303, f"-100, {PATH}, buffer, buffer, 0"),
    "open_by_handle_at": (304, "-100, buffer, 0"),
    "socket AF_INET": (41, "2, 1, 0"),
    "socket AF_INET6": (41, "10, 2, 0"),
    "socket AF_UNIX": (41, "1, 1, 0"),
    "socket AF_NETLINK": (41, "16, 3, 0"),
    "socket AF_PACKET": (41, "17, 3, 0"),
    "socket AF_VSOCK": (41, "40, 1, 0"),
    "socket AF_ALG": (41, "38, 5, 0"),
    "socketpair of datagrams": (53, "1, 2, 0, buffer"),
    "connect": (42, "0, None, 0"),
    "bind": (49, "0, None, 0"),
    "fanotify_init": (300, "0, 0"),
    "inotify_init1": (294, "0"),
    "splice": (275, "0, None, 1, None, 1, 0"),
    "vmsplice": (278, "1, None, 0, 0"),
    "mknod of a device": (133, 'b"disk", 0o60600, 0x800'),
    "mknod of a socket": (133, 'b"socket", 0o140600, 0'),
    "sched_setaffinity": (203, "0, 8, buffer"),
    "sched_setscheduler": (144, "0, 1, buffer"),
    "setpriority": (141, "0, 1, 19"),
    "ioprio_set": (251, "1, 0, 0x2000"),
    "mbind": (237, "None, 0, 0, None, 0, 0"),
    "move_pages": (279, "1, 0, None, None, None, 0"),
    "prctl: dumpable": (157, "4, 1, 0, 0, 0"),
    "prctl: keep capabilities": (157, "8, 1, 0, 0, 0"),
    "prctl: a filter of its own": (157, "22, 2, buffer, 0, 0"),
    "seccomp with a listener": (317, "1, 8, buffer"),
    "terminal: push input": (16, "0, 0x5412, buffer"),
    "terminal: console": (16, "0, 0x541C, buffer"),
    "a call of the x32 kind": (0x40000000 + 20, "1, None, 0"),
    "a number that does not exist": (9999, "0"),
}
ATTEMPT = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(4096)
def as_long(a): return ctypes.c_long(a) if isinstance(a, int) else a
result = libc.syscall(*map(as_long, ({number}, {arguments})))
print(result, ctypes.get_errno())
"""


@pytest.mark.parametrize("name", CALLS)
def test_a_system_call_is_refused(run, name: str) -> None:
    number, arguments = CALLS[name]
    done = run(ATTEMPT.format(number=number, arguments=arguments))
    result, error = map(int, done.stdout.split())
    assert result == -1
    # 1 is EPERM of the filter, 38 ENOSYS. EINVAL or EBADF would mean that the kernel ran the call.
    assert error in (1, 38)
    assert run("print('next')").stdout == "next\n"


def test_the_list_is_of_use(run) -> None:
    """The same way to call the kernel works for an allowed call: getpid."""
    assert run(ATTEMPT.format(number=39, arguments="0")).stdout.startswith("2 ")


def test_calls_of_32_bits_end_the_program(run) -> None:
    """int 0x80 has other call numbers, which a filter for 64 bits would not reject."""
    machine_code = r"b'\xb8\x14\x00\x00\x00\xcd\x80\xc3'"  # getpid of 32 bits
    done = run(f"""
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write({machine_code})
place = ctypes.addressof(ctypes.c_char.from_buffer(page))
print(ctypes.CFUNCTYPE(ctypes.c_int)(place)())
""")
    assert done.exit_code == -31  # SIGSYS
    assert done.stdout == ""
    assert run("print('next')").stdout == "next\n"
