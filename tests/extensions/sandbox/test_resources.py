"""Attempts to get ten times the allowed amount of each resource, by every known way."""

import asyncio
import os
import struct
import tracemalloc

import pytest
from sandbox_parts import parents, read_process

from fieldcraft.extensions.sandbox import frames
from fieldcraft.extensions.sandbox.limits import ProgramStatus, SandboxLimits
from waiting import wait_until

CALL = "import ctypes, fcntl, os, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n"
# Memory that the kernel would hold for a program without counting it.
UNCOUNTED = {
    "files in memory": "os.write(os.memfd_create('x'), bytes(2**20))",
    "files in memory, by number": "assert libc.syscall(319, b'x', 0) >= 0, 'refused'",
    "secret memory": "assert libc.syscall(447, 0) >= 0, 'refused'",
    "huge pipes": "fcntl.fcntl(os.pipe()[1], 1031, 2**20)",
    "huge pipes by name": "os.mkfifo('p'); fcntl.fcntl(os.open('p', os.O_RDWR), 1031, 2**20)",
    "huge buffers of sockets": "socket.socketpair()[0].setsockopt(1, 7, 2**24)",
    "leases": "fcntl.fcntl(open('x', 'w'), 1024, 1)",
    "System V memory": "assert libc.shmget(0, 2**20, 0o1600) >= 0, 'refused'",
    "message queues": "assert libc.syscall(240, b'a', 0o102, 0o600, None) >= 0, 'refused'",
    "file systems": "assert libc.mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0, 'refused'",
    "descriptors": "x = [os.pipe() for _ in range(640)]",
    "descriptors, after raising": (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (640, 640)); x = open('/dev/null')"
    ),
    "a file": "open('x', 'wb').write(bytes(10 * 4 * 2**20))",
    "a file, sparse": "os.truncate(os.open('x', os.O_CREAT | os.O_RDWR), 2**40)",
    "files": "for i in range(80): open(str(i), 'wb').write(bytes(2**20))",
    "files without names": (
        "x = []\nfor i in range(80):\n"
        "    x.append(open('x', 'wb', 0)); x[-1].write(bytes(2**20)); os.unlink('x')"
    ),
    "files that are mapped": (
        "import mmap\nfor i in range(60):\n"
        "    d = os.open(str(i), os.O_CREAT | os.O_RDWR); os.posix_fallocate(d, 0, 2**20)\n"
        "    mmap.mmap(d, 2**20)"
    ),
    "names": "for i in range(99999): os.mkdir(str(i))",
    "memory": "x = bytearray(10 * 256 * 2**20)",
    "shared memory": "import mmap; mmap.mmap(-1, 10 * 256 * 2**20)",
    "memory of the device zero": (
        "import mmap; mmap.mmap(os.open('/dev/zero', os.O_RDWR), 10 * 256 * 2**20)"
    ),
    "locked memory": "assert libc.mlock(ctypes.create_string_buffer(2**20), 2**20) == 0, 'refused'",
    "processes": (
        "for i in range(80):\n    if os.fork() == 0:\n        import time; time.sleep(99)"
    ),
    "threads": (
        "import threading, time\nfor i in range(80):\n"
        "    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()"
    ),
}


@pytest.mark.parametrize("name", UNCOUNTED)
def test_ten_times_a_limit_is_refused(run, name: str) -> None:
    code = CALL + UNCOUNTED[name]
    compile(code, name, "exec")
    done = run(code)
    assert (done.status, done.exit_code) == (ProgramStatus.FINISHED, 1)
    assert done.stderr.rpartition("\n")[0].rpartition("\n")[2].startswith(
        ("OSError", "PermissionError", "AssertionError: refused", "AttributeError", "MemoryError",
         "BlockingIOError", "RuntimeError", "ValueError")
    )  # fmt: skip
    assert run("print('next')").stdout == "next\n"


def test_full_pipes_and_sockets_hold_little(run) -> None:
    code = """
import os, socket
held = 0
for make in (os.pipe, lambda: tuple(s.detach() for s in socket.socketpair())):
    pairs = []
    try:
        while True:
            pairs.append(make())
            os.set_blocking(pairs[-1][1], False)
            while True:
                try: held += os.write(pairs[-1][1], bytes(4096))
                except BlockingIOError: break
    except OSError: pass
    for pair in pairs:
        for d in pair: os.close(d)
print(held)
"""
    done = run(code)
    assert 2**20 < int(done.stdout) < 16 * 2**20


def test_descriptors_that_are_on_their_way_keep_no_other_program_from_starting(sandbox) -> None:
    """The kernel counts descriptors in transit for all programs together."""
    fill = """
import array, os, socket
ends = [socket.socketpair() for _ in range(20)]
full = [0]
for a, b in ends:
    try:
        while True: socket.send_fds(a, [b'x'], [0] * 20, socket.MSG_DONTWAIT)
    except OSError as error: full.append(error.errno)
print(109 in full)
"""

    async def story():
        async with sandbox.open_session() as session:
            filled = await session.run(fill)
            return filled, [await sandbox.run("print('next')") for _ in range(5)]

    filled, others = asyncio.run(story())
    assert filled.stdout == "True\n", filled
    assert [other.stdout for other in others] == ["next\n"] * 5


def test_locks_tell_no_other_program_anything(sandbox) -> None:
    lock = """
import fcntl, os
file = open(os.__file__)
fcntl.flock(file, fcntl.LOCK_EX)
fcntl.lockf(file, fcntl.LOCK_SH)
"""
    look = """
import fcntl, os, struct
file = open(os.__file__)
fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
asked = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)
print(fcntl.fcntl(file, fcntl.F_GETLK, asked) == asked)
try: print(fcntl.fcntl(file, 36, asked))
except OSError: print('refused')
"""

    async def story():
        async with sandbox.open_session() as session:
            return await session.run(lock), await sandbox.run(look)

    locked, output = asyncio.run(story())
    assert locked.ok
    assert output.stdout == "True\nrefused\n", output.stderr


def test_databases_in_files_work(run) -> None:
    code = (
        "import sqlite3\nc = sqlite3.connect('x.db')\nwith c: c.execute('create table t (a)')\n"
        "with c: c.execute('insert into t values (5)')\n"
        "print(sqlite3.connect('x.db').execute('select * from t').fetchall())"
    )
    assert run(code).stdout == "[(5,)]\n"


def test_the_owner_dies_last(sandbox) -> None:
    """If memory runs out, the kernel kills by this score."""

    def scores() -> list[int]:
        """Return the scores of the sandbox's processes, without those that have ended meanwhile."""
        found = {sandbox._supervisors[0]._process.pid}
        for child, parent in parents().items():
            if parent in found:
                found.add(child)
        texts = [read_process(process, "oom_score_adj") for process in found]
        return [int(text) for text in texts if text]

    wait_until(lambda: len(scores()) > 4)  # includes the template and its workers
    assert set(scores()) == {1000}
    assert int(read_process(os.getpid(), "oom_score_adj")) < 1000


# Expressions for bytes that a program writes in place of its worker's answer.
FORGED = {
    "much JSON": "b'[],' * 3_000_000",
    "a long value": f"{frames.REPORT + frames.REPORT_HEADER.pack(0, 2**40)!r} + bytes(2**20)",
    "a length below nothing": repr(frames.REPORT + frames.REPORT_HEADER.pack(0, -5)),
    "a value that is not text": repr(frames.REPORT + frames.REPORT_HEADER.pack(0, 2) + b"\xff\xfe"),
    "two answers": repr(2 * (frames.REPORT + frames.REPORT_HEADER.pack(0, -1))),
    "half an answer": repr(frames.REPORT + b"\0\0"),
    "a file that nobody asked for": repr(frames.REPORT + struct.pack("!iqq", 0, -1, 3) + b"abc"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_answer_costs_the_owner_nothing(run, name: str) -> None:
    tracemalloc.start()
    done = run(f"import os\nos.write(3, {FORGED[name]})\nos._exit(0)")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert done.status is ProgramStatus.FINISHED  # at once: no process writes to a closed pipe
    assert len(done.value or "") < 100
    assert done.files == {}
    assert peak < 16 * 2**20


def test_what_is_brought_back_is_bounded(run) -> None:
    code = f"for i in range(7): open(str(i), 'wb').write(bytes({frames.MAX_FILE_BYTES} + (i < 1)))"
    limits = SandboxLimits(wall_seconds=600, disk_mb=100, file_mb=20)
    done = run(code, limits=limits, fetch=[str(i) for i in range(7)])
    assert {name: len(data) for name, data in done.files.items()} == {
        str(i): frames.MAX_FILE_BYTES for i in range(1, 5)
    }
