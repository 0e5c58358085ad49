"""Shared helpers of the sandbox tests."""

import asyncio
import shutil
import subprocess
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.extensions.sandbox.backends.container import ENGINES
from fieldcraft.extensions.sandbox.limits import ProgramResult, ProgramStatus, SandboxLimits
from waiting import wait_until_async

# Limits for programs that end without help, even on a slow machine.
QUICK = SandboxLimits(wall_seconds=600.0, memory_mb=256, processes=8, disk_mb=8, file_mb=4)


def out_of_time(run: Callable[..., ProgramResult], code: str, **limits: int) -> ProgramResult:
    """Run a program that never ends, until its time limit.

    The limit grows until the program has started its work, even on a slow machine.
    """
    for seconds in (0.4, 2, 10, 50, 250):
        done = run(
            f"print('begun', flush=True)\n{code}",
            limits=SandboxLimits(wall_seconds=seconds, **limits),
        )
        assert done.status is ProgramStatus.TIMEOUT
        if done.stdout:
            break
    return done


def read_process(process: int, name: str) -> str:
    """Return a file of a process in /proc; "" if the process has ended, also during the reading."""
    try:
        return Path(f"/proc/{process}/{name}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parents() -> dict[int, int]:
    """Return the parent of each process, the oldest process first.

    All of /proc is read, because the kernel's list of children is incomplete while a child or a
    thread ends.
    """
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            fields = read_process(int(folder.name), "stat").rpartition(")")[2].split()
            if fields:
                found.append((int(fields[19]), int(folder.name), int(fields[1])))  # start, parent
    return {process: parent for _, process, parent in sorted(found)}


def find_engine() -> str:
    """Return a container engine that runs. Skips the test if there is none."""
    for engine in ENGINES:
        if shutil.which(engine) is not None:
            done = subprocess.run([engine, "version"], capture_output=True, check=False)
            if done.returncode == 0:
                return engine
    pytest.skip("no container engine (docker or podman) runs on this machine")


async def cancel_while_starting(
    work: Coroutine[Any, Any, Any], patch: pytest.MonkeyPatch, has_begun: Callable[[], bool]
) -> Process:
    """Cancel work twice while it starts its first process, and return that process.

    The process has done what `has_begun` waits for, but its start has not returned.
    """
    start, allowed, started = asyncio.create_subprocess_exec, asyncio.Event(), list[Process]()

    async def start_slowly(*command: str, **options: Any) -> Process:
        started.append(await start(*command, **options))
        await allowed.wait()
        return started[-1]

    patch.setattr(asyncio, "create_subprocess_exec", start_slowly)
    task = asyncio.create_task(work)
    await wait_until_async(has_begun)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    allowed.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    return started[0]
