"""After a kill from outside, a status is returned and no resources leak."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
from sandbox_parts import parents, read_process

from fieldcraft.extensions.sandbox.limits import ProgramResult, ProgramStatus, SandboxLimits
from fieldcraft.extensions.sandbox.sandbox import Sandbox
from fieldcraft.types import UserError

# The process name marks it as running, because it cannot write to a place that a test can read.
SLEEP = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"asleep")  # PR_SET_NAME
time.sleep(3600)
"""
OTHERS: set[int] = set()  # outermost processes of other tests' sandboxes; must not be harmed


@pytest.fixture(autouse=True)
def _others() -> None:
    OTHERS.clear()
    OTHERS.update(children(os.getpid()))


@pytest.fixture
def own():
    """Yield a sandbox that a test may harm."""
    try:
        # Long enough that a machine that stalls for a minute does not end a run.
        sandbox = Sandbox(SandboxLimits(wall_seconds=600), max_concurrent=4, libraries=())
    except UserError as error:
        pytest.skip(f"this system has no full isolation: {error}")
    with sandbox:
        yield sandbox


def children(process: int) -> list[int]:
    return [child for child, parent in parents().items() if parent == process]


def descendants(process: int) -> list[int]:
    """Return descendants of a process without other tests' sandboxes, parents before children."""
    found, above = [process], parents()
    for child, parent in above.items():
        if parent in found and child not in OTHERS:
            found.append(child)
    return found[1:]


def templates() -> list[int]:
    """Return the processes of this test's sandbox, the nearest first: the outermost process, the
    template, and the processes of workers."""
    found = descendants(os.getpid())
    return [process for process in found if "sandbox.zygote" in read_process(process, "cmdline")]


async def asleep(count: int) -> None:
    """Wait until `count` programs sleep."""
    while sum(read_process(each, "comm") == "asleep\n" for each in templates()) != count:
        await asyncio.sleep(0.05)


async def settled(sandbox: Sandbox, busy: int = 0, started: int = 0) -> None:
    """Wait until only spare workers, busy workers, and processes started by programs remain."""
    while True:
        workers = len(sandbox._supervisors[0]._workers)
        fixed = 4  # the outermost process, the template, the namespace server and its child
        if workers == busy + len(sandbox._idle_workers) and (
            len(templates()) == fixed + 2 * workers + started  # an init process and a program each
        ):
            return
        await asyncio.sleep(0.05)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mounts() -> str:
    return Path("/proc/self/mounts").read_text()


async def killed_while_it_runs(sandbox: Sandbox, victim: int) -> ProgramResult:
    """Return the result of a run during which a process of the sandbox is killed.

    Process 0 is the outermost, 1 the template, and the last the program.
    """
    session = sandbox.open_session()
    await session.run("1")  # so that its worker exists
    running = asyncio.create_task(session.run(SLEEP))
    await asleep(1)
    os.kill(templates()[victim], signal.SIGKILL)
    return await running


@pytest.mark.parametrize("victim", [0, 1], ids=["outermost process", "template"])
def test_a_template_that_is_killed_is_started_again(own, victim: int) -> None:
    async def story() -> tuple[ProgramResult, ProgramResult]:
        return await killed_while_it_runs(own, victim), await own.run("print('next')")

    lost, after = asyncio.run(story())
    assert (lost.status, lost.exit_code) == (ProgramStatus.LOST, None)
    assert after.stdout == "next\n"


def test_all_workers_can_be_killed(own) -> None:
    """Idle workers are killed as well: a run gets a new one."""

    async def story() -> tuple[ProgramResult, ProgramResult]:
        await own.run("1")
        running = asyncio.create_task(own.run(SLEEP))
        await asleep(1)
        spare = list(own._idle_workers)
        for process in templates()[2:]:
            with suppress(ProcessLookupError):  # it has ended with the first of its namespace
                os.kill(process, signal.SIGKILL)
        stopped = await running
        while not all(worker.terminated.is_set() for worker in spare):
            await asyncio.sleep(0.05)
        after = await own.run("print('next')")
        while after.status is ProgramStatus.LOST:  # a worker that was starting, and not yet spare
            after = await own.run("print('next')")
        return stopped, after

    stopped, after = asyncio.run(story())
    assert stopped.exit_code in (None, -signal.SIGKILL)
    assert stopped.status in (ProgramStatus.LOST, ProgramStatus.FINISHED)
    assert after.stdout == "next\n"


def test_what_a_program_started_ends_with_it_whoever_ends_it(own) -> None:
    """The namespace of a program ends with it, without involvement of the sandbox's owner."""

    async def story() -> None:
        session = own.open_session()
        await session.run("import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass")
        await settled(own, busy=1, started=1)
        before = templates()
        outermost, template, *_ = before
        namespace_server, *programs = children(template)
        for process in programs:
            os.kill(process, signal.SIGKILL)
        async with asyncio.timeout(300):
            await quiet(outermost, 3)  # the template, the namespace server and its child
        assert len(before) > 4 + 2 * len(programs)  # programs, init processes, a child
        assert children(template) == [namespace_server]

    asyncio.run(story())


def test_a_cancelled_run_leaves_nothing(own) -> None:
    async def story() -> ProgramResult:
        tasks = [asyncio.create_task(own.run(SLEEP)) for _ in range(6)]  # two of them wait
        await asleep(4)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await own.run("print('next')")

    assert asyncio.run(story()).stdout == "next\n"


def in_a_process(work: Callable[..., None], *arguments: int) -> None:
    """Run work in a process without sandboxes of other tests, which start and end workers meanwhile
    and so change its descriptors."""
    process = get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_closing_ends_every_process_and_descriptor() -> None:
    in_a_process(open_and_close)


def open_and_close() -> None:
    before = descriptors(), mounts()
    with Sandbox(SandboxLimits(wall_seconds=600), libraries=()) as sandbox:

        async def story() -> None:
            session = sandbox.open_session()
            await session.run("import os\nif os.fork() == 0:\n    while True: os.setsid()")
            await sandbox.run("1")

        asyncio.run(story())
        assert templates()
    assert templates() == []
    assert (descriptors(), mounts()) == before
    with pytest.raises(UserError, match="the sandbox is closed"):
        asyncio.run(sandbox.run("1"))


async def many(sandbox: Sandbox, runs: int) -> None:
    programs = (
        "print(1)",
        "1 / 0",
        "import os; os._exit(3)",
        "import os\nif os.fork() == 0:\n    while True: pass",
        "open('file', 'w').write('x' * 1000)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import sys; sys.stdout.write('x' * 100_000)",
    )
    for start in range(0, runs, 200):
        done = await asyncio.gather(
            *(sandbox.run(programs[i % len(programs)]) for i in range(start, start + 200))
        )
        assert {run.status for run in done} == {ProgramStatus.FINISHED}


async def quiet(process: int, most: int) -> None:
    """Wait until the sandbox has at most `most` processes."""
    while len(descendants(process)) > most:
        await asyncio.sleep(0.05)


def leaks(runs: int) -> None:
    async def story(sandbox: Sandbox) -> None:
        await many(sandbox, 200)
        await settled(sandbox)
        before = descriptors(), mounts(), len(templates())
        await many(sandbox, runs)
        async with asyncio.timeout(240):
            await quiet(os.getpid(), before[2])
            while descriptors() > before[0]:
                await asyncio.sleep(0.05)
        assert mounts() == before[1]

    with Sandbox(SandboxLimits(wall_seconds=600), libraries=()) as sandbox:
        asyncio.run(story(sandbox))
    assert templates() == []


@pytest.mark.long
def test_two_hundred_runs_at_once_leave_nothing() -> None:
    in_a_process(leaks, 200)


@pytest.mark.slow
def test_ten_thousand_runs_leave_nothing() -> None:
    in_a_process(leaks, 10_000)
