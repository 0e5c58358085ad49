"""Escapes in Python: an attempt that succeeds prints ESCAPED. After each the next run works."""

import asyncio
import os
import socket
from pathlib import Path

import pytest
from sandbox_parts import out_of_time

from fieldcraft.extensions.sandbox.limits import ProgramStatus

SECRET = "a secret of the host"

# Each reads or reaches part of the host. A refused operation raises, which ends the attempt.
READS = {
    "passwords": "print(open('/etc/passwd').read(), 'ESCAPED')",
    "shadow": "print(open('/etc/shadow').read(), 'ESCAPED')",
    "home of root": "import os; print(os.listdir('/root/.ssh'), 'ESCAPED')",
    "a file by its path": "print(open({file!r}).read(), 'ESCAPED')",
    "a file by a long way up": "print(open('../../../../../..' + {file!r}).read(), 'ESCAPED')",
    "a file by a symbolic link": (
        "import os; os.symlink({file!r}, 'link'); print(open('link').read(), 'ESCAPED')"
    ),
    "a file by a hard link": "import os; os.link({file!r}, 'link'); print('ESCAPED')",
    "a file by a link to its folder": (
        "import os; os.symlink({folder!r}, 'up'); print(os.listdir('up'), 'ESCAPED')"
    ),
    "the folder above the root": (
        "import os\n"
        "if os.stat('/..').st_ino != os.stat('/').st_ino or 'etc' in os.listdir('/..'):\n"
        "    print('ESCAPED')"
    ),
    "a folder that was open before": (
        "import os\n"
        "for d in range(3, 300):\n"
        "    try: os.stat('etc', dir_fd=d)\n"
        "    except OSError: continue\n"
        "    print('ESCAPED')"
    ),
    "own process in /proc": "print(open('/proc/self/environ').read(), 'ESCAPED')",
    "first process in /proc": "print(open('/proc/1/cmdline').read(), 'ESCAPED')",
    "memory in /proc": "open('/proc/self/mem', 'rb+'); print('ESCAPED')",
    "root of a process in /proc": "import os; print(os.listdir('/proc/1/root'), 'ESCAPED')",
    "descriptors in /proc": "import os; print(os.listdir('/proc/self/fd'), 'ESCAPED')",
    "descriptors by name": (
        "import os\n"
        "for d in range(3, 300):\n"
        "    for place in ('/proc/self/fd', '/proc/1/fd', '/dev/fd'):\n"
        "        if os.path.lexists(f'{{place}}/{{d}}'): print('ESCAPED')"
    ),
    "names of descriptors": "import os; print(os.listdir('/dev/fd'), 'ESCAPED')",
    "processes in /proc": "import os\nif os.listdir('/proc') != ['self']: print('ESCAPED')",
    "a stream put elsewhere": (
        "import os; os.symlink({file!r}, '/proc/self/fd/3'); print('ESCAPED')"
    ),
    "settings of the kernel": "open('/proc/sys/kernel/core_pattern', 'w'); print('ESCAPED')",
    "/sys": "import os; print(os.listdir('/sys/kernel'), 'ESCAPED')",
    "control groups": "open('/sys/fs/cgroup/cgroup.procs', 'w'); print('ESCAPED')",
    "disks": (
        "import os\n"
        "if [n for n in os.listdir('/dev') if n.startswith(('sd', 'vd', 'nvme', 'mem', 'kmsg'))]:\n"
        "    print('ESCAPED')"
    ),
    "terminal": "open('/dev/tty', 'w'); print('ESCAPED')",
    "accelerators": "import os; os.open('/dev/nvidia0', os.O_RDWR); print('ESCAPED')",
    "shared memory of the host": (
        "import os\nif {shared!r} in os.listdir('/dev/shm'): print('ESCAPED')"
    ),
    # The parent folders of a Python installed in /tmp exist, and nothing else.
    "temporary files of the host": (
        "import os\nif {{*os.listdir('/tmp')}} & {{*{folder!r}.split('/')}}: print('ESCAPED')"
    ),
    "secrets of the environment": (
        "import os\nif {secret!r} in str(os.environ) or 'FIELDCRAFT_KEY' in os.environ:\n"
        "    print('ESCAPED')"
    ),
    "the name of the host": "import os\nif os.uname().nodename != 'sandbox': print('ESCAPED')",
    "the source of the sandbox": "print(open({source!r}).read(), 'ESCAPED')",
}
WRITES = {
    "the standard library": "import os; open(os.__file__, 'a'); print('ESCAPED')",
    "installed packages": "import numpy; open(numpy.__file__, 'a'); print('ESCAPED')",
    "packages beside the others": (
        "import numpy, os\n"
        "os.mkdir(os.path.dirname(os.path.dirname(numpy.__file__)) + '/evil'); print('ESCAPED')"
    ),
    "the root": "open('/evil', 'w'); print('ESCAPED')",
    "a file of the host": "open({file!r}, 'a'); print('ESCAPED')",
    "devices": "open('/dev/evil', 'w'); print('ESCAPED')",
    "rights of a file of root": "import os; os.chmod(os.__file__, 0o777); print('ESCAPED')",
    "times of a file": "import os; os.utime(os.__file__); print('ESCAPED')",
    "a library, by its name": "import os; os.rename(os.__file__, '/tmp/os.py'); print('ESCAPED')",
}
REACHES = {
    "the network": (
        "import socket\nsocket.create_connection(('127.0.0.1', {port})); print('ESCAPED')"
    ),
    "the network, by name": "import socket; print(socket.getaddrinfo('localhost', 80), 'ESCAPED')",
    "the web": "import urllib.request as r; r.urlopen('http://127.0.0.1:{port}'); print('ESCAPED')",
    "a port to listen on": "import socket; socket.create_server(('', 0)); print('ESCAPED')",
    "an abstract socket": (
        "import socket\ns = socket.socket(socket.AF_UNIX)\n"
        "s.connect({abstract!r}); print('ESCAPED')"
    ),
    "an abstract socket, from a pair": (
        "import socket\na, b = socket.socketpair()\na.sendto(b'x', {abstract!r})\n"
        "a.connect({abstract!r}); print('ESCAPED')"
    ),
    "sockets that were open before": (
        "import os, socket\n"
        "for d in range(4, 300):\n"
        "    try: os.fstat(d)\n"
        "    except OSError: continue\n"
        "    print('ESCAPED', d)"
    ),
    "network devices": "import socket; print(socket.if_nameindex(), 'ESCAPED')",
    "a process of the host": "import os; os.kill({process}, 0); print('ESCAPED')",
    "the group of a process of the host": "import os; os.killpg({process}, 0); print('ESCAPED')",
    "the first process": (
        "import os, signal, time\n"
        "for s in set(signal.Signals): os.kill(1, s)\n"
        "time.sleep(0.05)\n"
        "os.kill(1, 0); print('alive')"
    ),
    "limits of another process": (
        "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (1, 1)); print('ESCAPED')"
    ),
    "higher limits": (
        "import resource as r\nr.setrlimit(r.RLIMIT_NPROC, (-1, -1)); print('ESCAPED')"
    ),
    "more memory": "import resource as r\nr.setrlimit(r.RLIMIT_AS, (-1, -1)); print('ESCAPED')",
    "core dumps": "import resource as r\nr.setrlimit(r.RLIMIT_CORE, (9, 9)); print('ESCAPED')",
    "another user": "import os; os.setuid(0); print('ESCAPED')",
    "another program": "import os, sys; os.execv(sys.executable, ['python']); print('ESCAPED')",
    "a subprocess": "import subprocess as s, sys; s.run([sys.executable, '-V']); print('ESCAPED')",
    "a shell": "import os\nif os.system('true') == 0: print('ESCAPED')",
    "a program in memory": (
        "import os\nf = os.memfd_create('x')\nos.write(f, b'#!/bin/sh\\n')\n"
        "os.execve(f, ['x'], {{}}); print('ESCAPED')"
    ),
    "a library of its own": (
        "import ctypes, shutil, _ctypes\nshutil.copy(_ctypes.__file__, 'own.so')\n"
        "ctypes.CDLL('./own.so'); print('ESCAPED')"
    ),
    "memory of the host by numpy": (
        "import numpy as n; n.memmap('/dev/mem', dtype='u1', mode='r'); print('ESCAPED')"
    ),
    "a file of the host by numpy": "import numpy as n; n.fromfile({file!r}); print('ESCAPED')",
    "a file of the host by ctypes": (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "if libc.open({file!r}.encode(), 0) >= 0: print('ESCAPED')"
    ),
    "rights by a file of root's": (
        "import os, shutil\nshutil.copy(os.__file__, 'x'); os.chmod('x', 0o4755)\n"
        "os.execv('x', ['x']); print('ESCAPED')"
    ),
    "POSIX shared memory of the host": (
        "from multiprocessing.shared_memory import SharedMemory\n"
        "SharedMemory({shared!r}); print('ESCAPED')"
    ),
}
ATTEMPTS = {
    f"{kind} {name}": code
    for kind, group in (("reads", READS), ("writes", WRITES), ("reaches", REACHES))
    for name, code in group.items()
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory):
    """Create objects on the host that the attempts target."""
    folder = tmp_path_factory.mktemp("host")
    file = folder / "secret.txt"
    file.write_text(SECRET)
    os.environ["FIELDCRAFT_KEY"] = SECRET
    shared = Path(f"/dev/shm/fieldcraft-{os.getpid()}")  # tests run in parallel
    shared.write_text(SECRET)
    abstract = f"\0fieldcraft-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(abstract)
        unix.listen()
        yield {
            "file": str(file),
            "folder": str(folder),
            "shared": shared.name,
            "secret": SECRET,
            "port": server.getsockname()[1],
            "abstract": abstract,
            "process": os.getpid(),
            "source": __file__,
        }
    shared.unlink()
    del os.environ["FIELDCRAFT_KEY"]
    assert file.read_text() == SECRET


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_is_contained(run, host, name: str) -> None:
    code = ATTEMPTS[name].format(**host)
    compile(code, name, "exec")  # a faulty attempt would prove nothing
    done = run(code)
    assert done.status is ProgramStatus.FINISHED
    assert "ESCAPED" not in done.stdout + (done.value or "")
    assert "NameError" not in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert run("print('next')").stdout == "next\n"


BOMBS = {
    "processes": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "processes that end": (
        "import os\n"
        "while True:\n"
        "    try:\n"
        "        if os.fork() == 0: os._exit(0)\n"
        "    except OSError: pass"  # processes that were not waited for also count
    ),
    "threads": (
        "import threading, time\n"
        "while True:\n"
        "    try: threading.Thread(target=time.sleep, args=(99,)).start()\n"
        "    except RuntimeError: pass"
    ),
    "signals to all": (
        "import os, signal, time\nif os.fork() == 0: time.sleep(99)\n"
        "os.kill(-1, signal.SIGKILL)\nwhile True: pass"
    ),
    "deaf to signals": (
        "import signal, time\n"
        "for s in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGXCPU):\n"
        "    signal.signal(s, signal.SIG_IGN)\n"
        "while True: time.sleep(1)"
    ),
    "stopped by itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "a sleeping thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()"
    ),
    "without an end": "while True: pass",
    "inside of C": "2 ** 10 ** 11",
    "waiting for input that never comes": "import os; os.read(os.pipe()[0], 1)",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_program_that_never_ends_is_ended(run, name: str) -> None:
    done = out_of_time(run, BOMBS[name], memory_mb=256, processes=8)
    assert (done.stdout, done.exit_code) == ("begun\n", None)
    assert run("print('next')").stdout == "next\n"


HUNGER = {
    "memory": ("x = bytearray(2**40)", "MemoryError"),
    "memory, in small pieces": ("x = []\nwhile True: x.append(bytearray(2**24))", "MemoryError"),
    "memory by numpy": ("import numpy\nnumpy.ones(2**34)", "MemoryError"),
    "a large file": ("f = open('x', 'wb')\nwhile True: f.write(bytes(2**20))", "File too large"),
    "many files": (
        "for i in range(99999): open(str(i), 'wb').write(bytes(4096))",
        "No space left on device",
    ),
    "memory as files": (
        "for i in range(99): open(f'/dev/shm/{i}', 'wb').write(bytes(2**20))",
        "No space left on device",
    ),
    "locked memory": (
        "import ctypes\nlibc = ctypes.CDLL(None)\nassert libc.mlockall(3) == 0",
        "AssertionError",
    ),
    "descriptors": ("x = [open('/dev/null') for _ in range(9999)]", "Too many open files"),
}


@pytest.mark.parametrize("name", HUNGER)
def test_what_a_program_may_use_is_limited(run, name: str) -> None:
    code, error = HUNGER[name]
    done = run(code)
    assert (done.status, done.exit_code) == (ProgramStatus.FINISHED, 1)
    assert error in done.stderr
    assert run("print('next')").stdout == "next\n"


def test_programs_do_not_see_each_other(sandbox) -> None:
    """Two concurrent programs share neither files, shared memory, variables nor processes."""
    mark = """
import _posixshmem, os, builtins
open('mark', 'x').close(); open('/dev/shm/mark', 'x').close(); builtins.mark = 1
_posixshmem.shm_open('/same name', os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
"""
    look = "print(os.getpid(), sorted(os.listdir('.')))"

    async def both():
        async with sandbox.open_session() as first, sandbox.open_session() as second:
            return [await each.run(code) for code in (mark, look) for each in (first, second)]

    found = [(run.stdout, run.stderr) for run in asyncio.run(both())]
    assert found == [("", "")] * 2 + [("2 ['mark']\n", "")] * 2
