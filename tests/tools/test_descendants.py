"""External programs end with all their descendants, including those in other sessions."""

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.extensions.external_envs.programs import run_program
from fieldcraft.extensions.external_envs.worker_process import WorkerProcess
from fieldcraft.tools import descendants
from fieldcraft.tools.descendants import ProcessDescendants

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc")
PATIENCE = 300  # seconds, more than any test needs
# Leaves a daemon process behind that holds a pipe of the test and its own output.
DAEMON = """
import os, signal, sys
ready, begun = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        held = os.open(sys.argv[1], os.O_WRONLY)
        os.write(begun, b"x")
        while True:
            signal.pause()
    os._exit(0)
os.read(ready, 1)
"""
ANSWERS = DAEMON + "print('Oslo')"
FAILS = DAEMON + "sys.exit(3)"
HANGS = DAEMON + "signal.pause()"
# A worker that answers its first line and exits when its input ends.
WORKER = DAEMON + "sys.stdin.readline(); print('{}', flush=True); sys.stdin.read()"
# Starts processes, each of which does the same in a separate session.
SPREADS = """
import os, sys, time
held = os.open(sys.argv[1], os.O_WRONLY)
for _ in range(6):  # 64 processes at most
    if os.fork() == 0:
        os.setsid()
time.sleep(3600)
"""


@contextmanager
def held_by_nobody_after(folder: Path) -> Iterator[str]:
    """Yield a pipe that processes may hold in the block, and none after it."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield str(pipe)
        readable, _, _ = select.select([end], [], [], PATIENCE)
        assert readable, "a process still holds the pipe"
        assert os.read(end, 1) == b""
    finally:
        os.close(end)


def test_what_an_agent_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    with held_by_nobody_after(tmp_path) as pipe:
        command = [sys.executable, "-c", ANSWERS, pipe]
        assert run_to_its_end(command, tmp_path) == (0, b"Oslo\n", b"")


def test_also_where_the_agent_fails(tmp_path: Path) -> None:
    with held_by_nobody_after(tmp_path) as pipe:
        command = [sys.executable, "-c", FAILS, pipe]
        assert run_to_its_end(command, tmp_path) == (3, b"", b"")


def run_to_its_end(command: list[str], folder: Path) -> tuple[int, bytes, bytes]:
    """Run a program; returns its status, its output and its errors."""
    return asyncio.run(asyncio.wait_for(run_program(command, b"", {}, folder), PATIENCE))


def test_also_where_the_rollout_is_given_up(tmp_path: Path) -> None:
    """The rollout is cancelled, as by its time limit, while the daemon holds the pipe."""

    async def give_up(pipe: str) -> None:
        command = [sys.executable, "-c", HANGS, pipe]
        running = asyncio.create_task(run_program(command, b"", {}, tmp_path))
        await asyncio.to_thread(_until_held, pipe)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with held_by_nobody_after(tmp_path) as pipe:
        asyncio.run(give_up(pipe))


def test_also_where_it_is_given_up_while_it_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start, go_on = asyncio.create_subprocess_exec, asyncio.Event()

    async def start_slowly(*command: Any, **options: Any) -> Any:
        process = await start(*command, **options)
        await go_on.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_slowly)

    async def give_up(pipe: str) -> None:
        command = [sys.executable, "-c", HANGS, pipe]
        running = asyncio.create_task(run_program(command, b"", {}, tmp_path))
        await asyncio.to_thread(_until_held, pipe)
        for _ in range(2):
            running.cancel()
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait([running])
        assert running.cancelled()

    with held_by_nobody_after(tmp_path) as pipe:
        asyncio.run(give_up(pipe))


def _until_held(pipe: str) -> None:
    """Wait until a process has opened the pipe for writing, by a blocking open for reading."""
    os.close(os.open(pipe, os.O_RDONLY))


@pytest.mark.long
def test_what_a_worker_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    async def work(pipe: str) -> None:
        worker = WorkerProcess([sys.executable, "-c", WORKER, pipe], {}, tmp_path / "log")
        await worker.start()
        await worker.close()

    with held_by_nobody_after(tmp_path) as pipe:
        asyncio.run(asyncio.wait_for(work(pipe), PATIENCE))


def test_processes_that_start_others_meanwhile_do_not_escape(tmp_path: Path) -> None:
    with held_by_nobody_after(tmp_path) as pipe:
        marked = ProcessDescendants()
        process = subprocess.Popen(
            [sys.executable, "-c", SPREADS, pipe],
            env={**os.environ, **marked.environment_mark},
        )
        _until_held(pipe)
        marked.kill()
        process.wait()


def test_others_live_on() -> None:
    """Programs with a different mark survive, even if one has started the other."""
    outer, inner = ProcessDescendants(), ProcessDescendants()
    outer_only = {**os.environ, **outer.environment_mark}
    both = {**outer_only, **inner.environment_mark}
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=outer_only) as process,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=both) as nested,
    ):
        inner.kill()
        assert nested.wait() == -9
        assert process.poll() is None
        outer.kill()
        assert process.wait() == -9


def test_one_that_is_just_beginning_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`Popen` returns in the middle of an execve, when a process has no environment yet."""
    monkeypatch.setattr(descendants, "PROC_FOLDER", tmp_path)
    for _ in range(300):
        marked = ProcessDescendants()
        variables = {**os.environ, **marked.environment_mark}
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=variables) as process:
            link = tmp_path / str(process.pid)
            link.symlink_to(f"/proc/{process.pid}")
            found = list(marked._find_running())
            process.kill()
        link.unlink()
        assert found == [process.pid]


def test_one_that_another_has_started_ends_with_it() -> None:
    outer = ProcessDescendants()
    marks = {**os.environ, **outer.environment_mark, **ProcessDescendants().environment_mark}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=marks) as nested:
        outer.kill()
        assert nested.wait() == -9
