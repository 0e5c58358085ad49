"""Whatever is killed from outside, a status comes back and nothing is left behind."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from fieldcraft.sandbox.limits import Limits, Run, RunStatus
from fieldcraft.sandbox.sandbox import Sandbox
from fieldcraft.types import UserError

SLEEP = "import time; time.sleep(3600)"
OTHERS: set[int] = set()  # the outermost processes of other tests' sandboxes: nobody may harm them


@pytest.fixture(autouse=True)
def _others() -> None:
    OTHERS.clear()
    OTHERS.update(children(os.getpid()))


@pytest.fixture
def own():
    """A sandbox that a test may harm."""
    try:
        # So long that a machine that stood still for a minute does not end a run.
        made = Sandbox(Limits(wall_seconds=600), concurrent=4, libraries=())
    except UserError as error:
        pytest.skip(f"this system has no full isolation: {error}")
    with made:
        yield made


def children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task")
    try:
        texts = [(task / "children").read_text() for task in tasks.iterdir()]
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return []
    return [int(child) for text in texts for child in text.split()]


def descendants(process: int) -> list[int]:
    """Of a process but for other tests' sandboxes, the nearest first."""
    found = [child for child in children(process) if child not in OTHERS]
    return [each for child in found for each in (child, *descendants(child))]


def templates() -> list[int]:
    """The processes of this test's sandbox, the nearest first: the outermost, the template, and
    those of workers."""
    found = descendants(os.getpid())
    return [process for process in found if b"sandbox.template" in command(process)]


def command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except FileNotFoundError:  # it ended meanwhile
        return b""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mounts() -> str:
    return Path("/proc/self/mounts").read_text()


async def killed_while_it_runs(sandbox: Sandbox, victim: int) -> Run:
    """The run during which a process of the sandbox is killed: 0 the outermost, 1 the template,
    the last the program."""
    session = sandbox.session()
    await session.run("1")  # so that its worker is there
    running = asyncio.create_task(session.run(SLEEP))
    await asyncio.sleep(0.5)
    os.kill(templates()[victim], signal.SIGKILL)
    return await running


@pytest.mark.parametrize("victim", [0, 1], ids=["outermost process", "template"])
def test_a_template_that_is_killed_is_started_again(own, victim: int) -> None:
    async def story() -> tuple[Run, Run]:
        return await killed_while_it_runs(own, victim), await own.run("print('next')")

    lost, after = asyncio.run(story())
    assert (lost.status, lost.exit_code) == (RunStatus.LOST, None)
    assert after.stdout == "next\n"


def test_all_workers_can_be_killed(own) -> None:
    """Those that wait for a program, too: a run gets another one."""

    async def story() -> tuple[Run, Run]:
        await own.run("1")
        running = asyncio.create_task(own.run(SLEEP))
        await asyncio.sleep(0.5)
        for process in templates()[2:]:
            if Path(f"/proc/{process}").exists():
                os.kill(process, signal.SIGKILL)
        stopped = await running
        await asyncio.sleep(0.5)  # until the sandbox has heard of the others
        return stopped, await own.run("print('next')")

    stopped, after = asyncio.run(story())
    assert stopped.exit_code in (None, -signal.SIGKILL)
    assert stopped.status in (RunStatus.LOST, RunStatus.FINISHED)
    assert after.stdout == "next\n"


def test_what_a_program_started_ends_with_it_whoever_ends_it(own) -> None:
    """The namespace of a program ends with it, without a word from the owner of the sandbox."""

    async def story() -> None:
        session = own.session()
        await session.run("import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass")
        before: list[int] = []
        while before != templates():  # until all spare workers are there
            before = templates()
            await asyncio.sleep(0.5)
        outermost, template, *_ = before
        nursery, *programs = children(template)
        for process in programs:
            os.kill(process, signal.SIGKILL)
        async with asyncio.timeout(20):
            await quiet(outermost, 3)  # the template, the nursery, a keeper made in advance
        assert len(before) > 4 + 2 * len(programs)  # programs, keepers, and the first one's child
        assert children(template) == [nursery]

    asyncio.run(story())


def test_a_cancelled_run_leaves_nothing(own) -> None:
    async def story() -> Run:
        tasks = [asyncio.create_task(own.run(SLEEP)) for _ in range(6)]  # two of them wait
        await asyncio.sleep(0.3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await own.run("print('next')")

    assert asyncio.run(story()).stdout == "next\n"


def test_closing_ends_every_process_and_descriptor() -> None:
    before = descriptors(), mounts()
    with Sandbox(libraries=()) as sandbox:

        async def story() -> None:
            session = sandbox.session()
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
        assert {run.status for run in done} == {RunStatus.FINISHED}


async def quiet(process: int, most: int) -> None:
    """Wait until the sandbox has no more processes than that."""
    while len(descendants(process)) > most:
        await asyncio.sleep(0.05)


def leaks(runs: int) -> None:
    async def story(sandbox: Sandbox) -> None:
        await many(sandbox, 200)
        await asyncio.sleep(0.5)
        before = descriptors(), mounts(), len(templates())
        await many(sandbox, runs)
        async with asyncio.timeout(240):
            await quiet(os.getpid(), before[2])
            while descriptors() > before[0]:
                await asyncio.sleep(0.05)
        assert mounts() == before[1]

    with Sandbox(libraries=()) as sandbox:
        asyncio.run(story(sandbox))
    assert templates() == []


def test_two_hundred_runs_at_once_leave_nothing() -> None:
    leaks(200)


@pytest.mark.slow
def test_ten_thousand_runs_leave_nothing() -> None:
    leaks(10_000)
