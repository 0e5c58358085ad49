"""A worker process ends with its environment, even if its start or its end is interrupted."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fieldcraft.extensions.external_envs import worker_process
from fieldcraft.extensions.external_envs.worker_process import WorkerProcess
from fieldcraft.types import UserError
from waiting import wait_until, wait_until_async

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="there is no /proc")
# Starts a process in a separate session, and writes the ids of both to a file.
BEGIN = """
import os, signal, sys, time
other = os.fork()
if other == 0:
    os.setsid()
    os.closerange(0, 3)
    time.sleep(3600)
with open(sys.argv[1] + ".tmp", "w") as file:
    print([os.getpid(), other], file=file)
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
sys.stdin.readline()
"""
SILENT = BEGIN + "time.sleep(3600)"
INVALID = BEGIN + "print('Welcome!', flush=True); time.sleep(3600)"
ENDS = BEGIN + "sys.exit('no taskset')"
STAYS = BEGIN + "print('{}', flush=True); sys.stdin.read(); time.sleep(3600)"


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def all_ended_after(folder: Path) -> Iterator[Path]:
    """Yield the file for the ids of processes that must end with the block. The system may take a
    moment to end a killed process."""
    file = folder / "processes"
    yield file
    processes = json.loads(file.read_text())
    try:
        wait_until(lambda: not any(map(is_running, processes)))
    finally:
        for process in filter(is_running, processes):
            os.kill(process, 9)


def make_worker(program: str, file: Path) -> WorkerProcess:
    return WorkerProcess([sys.executable, "-c", program, str(file)], {}, file.with_name("log"))


def test_a_worker_whose_start_is_cancelled_is_killed(tmp_path: Path) -> None:
    async def story(file: Path) -> None:
        starting = asyncio.create_task(make_worker(SILENT, file).start())
        await wait_until_async(file.exists)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    with all_ended_after(tmp_path) as file:
        asyncio.run(story(file))


def test_a_worker_with_an_invalid_reply_is_killed(tmp_path: Path) -> None:
    with all_ended_after(tmp_path) as file, pytest.raises(json.JSONDecodeError):
        asyncio.run(make_worker(INVALID, file).start())


def test_a_worker_that_ends_is_a_sentence_with_its_last_line(tmp_path: Path) -> None:
    with (
        all_ended_after(tmp_path) as file,
        pytest.raises(UserError, match=r"the environment did not open \(no taskset\): fix this"),
    ):
        asyncio.run(make_worker(ENDS, file).start())


def test_a_worker_is_killed_although_its_end_is_cancelled_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "EXIT_TIMEOUT_SECONDS", 3600)

    async def story(file: Path) -> None:
        worker = make_worker(STAYS, file)
        await worker.start()
        closing = asyncio.create_task(worker.close())
        for _ in range(2):
            await asyncio.sleep(0)
            closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    with all_ended_after(tmp_path) as file:
        asyncio.run(story(file))
