"""Limits for all processes of a program together, during a call and between calls."""

import asyncio
from dataclasses import replace

import pytest
from sandbox_parts import parents, read_process

from fieldcraft.extensions.sandbox.limits import ProgramStatus, SandboxLimits
from fieldcraft.extensions.sandbox.sandbox import Sandbox
from waiting import wait_until_async

LIMITS = SandboxLimits(
    wall_seconds=600, cpu_seconds=2, memory_mb=96, processes=16, disk_mb=8, file_mb=4
)
# Each process stays below its own limit; all of them together need ten times as much.
EACH = "import os, mmap, time\n"
MEMORY = {
    "of its children": (
        "for i in range(14):\n"
        "    if os.fork() == 0:\n        x = b'x' * (70 * 2**20); time.sleep(3600)\n"
        "time.sleep(3600)"
    ),
    "of orphans": (
        "for i in range(14):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork(): os._exit(0)\n"
        "        os.setsid(); x = b'x' * (70 * 2**20); time.sleep(3600)\n"
        "    else: os.wait()\n"
        "time.sleep(3600)"
    ),
    "that is shared by two at a time": (
        "for i in range(7):\n"
        "    if os.fork() == 0:\n"
        "        x = mmap.mmap(-1, 70 * 2**20)\n"
        "        for j in range(70): x.write(bytes(2**20))\n"
        "        os.fork(); time.sleep(3600)\n"
        "time.sleep(3600)"
    ),
    "of children of threads": (
        "import threading\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "threading.stack_size(2**18)\n"  # memory inherited by a child counts as its own
        # No other thread runs during a fork, because the child would inherit its locks.
        "alone = threading.Lock()\n"
        "def start():\n"
        "    with alone: child = os.fork()\n"
        "    if child == 0: x = b'x' * (70 * 2**20)\n"
        "    time.sleep(3600)\n"
        "with alone:\n"
        "    for i in range(7): threading.Thread(target=start).start()"
    ),
}
TIME = {
    "of its children": "for i in range(3): os.fork()\nwhile True: pass",
    "of children that raise their limit": (
        "import resource as r\n"
        "for i in range(3):\n"
        "    if os.fork() == 0: break\n"
        "r.setrlimit(r.RLIMIT_CPU, (r.getrlimit(r.RLIMIT_CPU)[1],) * 2)\nwhile True: pass"
    ),
    "of threads": (
        "import threading, zlib\n"
        "threading.stack_size(2**18)\n"
        "def work():\n    while True: zlib.compress(bytes(2**20))\n"
        "for i in range(4): threading.Thread(target=work).start()\ntime.sleep(3600)"
    ),
    "of children one after the other": (
        "while True:\n    if os.fork() == 0:\n        sum(range(10**7)); os._exit(0)\n    os.wait()"
    ),
}


@pytest.fixture(scope="module")
def small():
    with Sandbox(LIMITS, libraries=()) as sandbox:
        yield sandbox


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_that_of_all_processes(small, name: str) -> None:
    assert asyncio.run(small.run(EACH + MEMORY[name])).status is ProgramStatus.MEMORY
    assert asyncio.run(small.run("print('next')")).stdout == "next\n"


def test_what_processes_share_is_counted_once(small) -> None:
    code = """
import os
x = b'x' * (60 * 2**20)
children = []
for i in range(10):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer); os.read(reader, 1); print(len(x)); os._exit(0)
    os.close(reader); children.append(writer)
total = sum(range(2 * 10**7))
for writer in children: os.close(writer)
for writer in children: os.wait()
"""
    patient = replace(LIMITS, cpu_seconds=60)  # the sum alone takes seconds on a slow machine
    done = asyncio.run(small.run(code, limits=patient))
    assert done.ok, done


@pytest.mark.long
@pytest.mark.parametrize("name", TIME)
@pytest.mark.parametrize("in_a_session", [False, True])
def test_processor_time_is_that_of_all_processes(small, name: str, in_a_session: bool) -> None:
    async def story():
        code = EACH + TIME[name]
        if not in_a_session:
            return await small.run(code)
        async with small.open_session() as session:
            assert (await session.run("1 + 1")).value == "2"
            return await session.run(code)

    done = asyncio.run(story())
    assert done.status is ProgramStatus.TIMEOUT
    assert asyncio.run(small.run("print('next')")).stdout == "next\n"


def states(template: int, name: str) -> list[str]:
    """Return the states of the descendants of a process that have this name."""
    found = {template}
    for child, parent in parents().items():
        if parent in found:
            found.add(child)
    stats = [read_process(process, "stat") for process in found]
    return [stat.rpartition(") ")[2][0] for stat in stats if f"({name})" in stat]


def test_between_calls_nothing_of_a_session_runs(small) -> None:
    begin = """
import ctypes, os, signal, threading, time
ctypes.CDLL(None).prctl(15, b"counts")  # PR_SET_NAME
n = 0
def count():
    global n
    while True: n += 1
def resist():
    while True:
        for s in (signal.SIGCONT, signal.SIGUSR1, signal.SIGUSR2):
            try: os.kill(1, s); os.kill(0, signal.SIGCONT)
            except OSError: pass
signal.signal(signal.SIGCONT, lambda *given: None)
for i in range(3):
    if os.fork() == 0:
        if i: resist()
        os.setsid(); count()
threading.Thread(target=count, daemon=True).start()
"""

    async def stopped(template: int) -> None:
        await wait_until_async(lambda: states(template, "counts") == 4 * ["T"])

    async def story():
        template = small._supervisors[0]._process.pid
        async with small.open_session() as session:
            assert (await session.run(begin)).ok
            await stopped(template)
            first = await session.run("n")
            second = await session.run("m = n\nwhile n == m: time.sleep(0.001)\nn")
            await stopped(template)
            return int(first.value), int(second.value)

    first, second = asyncio.run(asyncio.wait_for(story(), 600))
    assert first < second  # they continue during a call


def test_a_session_goes_on_after_a_rest(small) -> None:
    async def story():
        async with small.open_session() as session:
            await session.run("import subprocess, multiprocessing, time\nx = 1")
            return [(await session.run("time.sleep(0.01); x = x + 1; x")).value for _ in range(5)]

    assert asyncio.run(story()) == ["2", "3", "4", "5", "6"]
