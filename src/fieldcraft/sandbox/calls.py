"""One call of a worker: a program goes in, and whatever happens, a `Run` comes out in time."""

from __future__ import annotations

import asyncio
import base64
import binascii
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fieldcraft.sandbox.clipping import clip
from fieldcraft.sandbox.limits import Limits, Run, RunStatus
from fieldcraft.sandbox.worker import Worker

# The worker ends a program that is out of time itself, and says where it was. One that does not
# listen is killed so many seconds later.
GRACE_SECONDS = 0.25
_DYING_SECONDS = 30.0  # the kernel needs milliseconds; a machine that swaps needs more


@dataclass(frozen=True)
class Request:
    """A program and what it is given."""

    code: str
    stdin: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)  # name in the private folder -> data
    fetch: Sequence[str] = ()  # files to bring back
    tests: Mapping[str, str] | None = None  # what `apart.verdict` reads

    def message(self, limits: Limits, once: bool) -> dict[str, Any]:
        """`once`: the interpreter ends with the program."""
        return {
            "code": self.code,
            "stdin": self.stdin,
            "files": {name: base64.b64encode(data).decode() for name, data in self.files.items()},
            "fetch": list(self.fetch),
            "once": once,
            "apart": self.tests is not None,
            "wall_seconds": limits.wall_seconds,
            "cpu_seconds": limits.cpu_seconds,
            "output_bytes": limits.output_bytes,
        }


@dataclass(frozen=True)
class _Answer:
    """What a program's process says of itself; it may lie about nothing but itself."""

    exit_code: int
    value: str | None
    files: Mapping[str, bytes]


def _answer(message: Mapping[str, Any], fetch: Sequence[str]) -> _Answer | None:
    """What was asked for of a message: of its files, those that are to be fetched."""
    match message:
        case {"exit_code": int(code), "value": str() | None as value, "files": dict(files)}:
            asked = {name: files[name] for name in fetch if name in files}
            try:
                found = {n: base64.b64decode(data, validate=True) for n, data in asked.items()}
            except (TypeError, ValueError, binascii.Error):
                return None
            return _Answer(code, value, found)
    return None


async def call(
    worker: Worker,
    request: Request,
    limits: Limits,
    once: bool,
    kill: Callable[[Worker], None],
) -> Run:
    """Run a program in a worker that is ready. Unless it finishes in a session, the worker is
    killed and, unless it answered, gone."""
    began = time.perf_counter()
    for pipe in worker.outputs:
        pipe.start(limits.output_bytes)
    frames = [request.message(limits, once)]
    if request.tests is not None:
        frames.append(dict(request.tests))
    message = await _message(worker, frames, limits.wall_seconds)
    answer = _answer(message or {}, request.fetch)
    if once or answer is None:
        kill(worker)
    if answer is None:
        await asyncio.wait_for(worker.gone.wait(), _DYING_SECONDS)
    for pipe in worker.outputs:
        pipe.drain()
    status, exit_code = _ending(worker, message, answer)
    stdout, stderr = (pipe.kept for pipe in worker.outputs)
    return Run(
        status,
        exit_code,
        stdout.text(),
        stderr.text(),
        None if answer is None or answer.value is None else clip(answer.value, _most(limits)),
        time.perf_counter() - began,
        stdout.left_out + stderr.left_out,
        files={} if answer is None else answer.files,
    )


def _most(limits: Limits) -> int:
    """Of a value that was clipped: with the line about the gap."""
    return limits.output_bytes + 64


async def _message(
    worker: Worker, frames: Sequence[dict[str, Any]], wall_seconds: float
) -> Mapping[str, Any] | None:
    """What the worker says: its answer; that the program is out of time; None: it ended without
    a word. Otherwise what happened to it."""
    deadline = time.monotonic() + wall_seconds + GRACE_SECONDS

    async def talk() -> dict[str, Any] | None:
        for frame in frames:
            await worker.tell(frame)
        return await worker.hear()

    talking = asyncio.create_task(talk())
    ended = asyncio.create_task(worker.exited.wait())
    flooded = asyncio.create_task(worker.flooded.wait())
    try:
        waiting: set[asyncio.Task[Any]] = {talking, ended, flooded}
        while waiting:
            left = deadline - time.monotonic()
            done, waiting = await asyncio.wait(
                waiting, timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED
            )
            if flooded in done:
                return {"flood": True}
            if talking in done and talking.result() is not None:
                return talking.result()
            if ended in done:  # its last words may still be on the way
                if talking.done():
                    return None
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            if not done:
                return None if worker.exited.is_set() else {"timeout": True}
        return None
    finally:
        for task in (talking, ended, flooded):
            task.cancel()
        await asyncio.gather(talking, ended, flooded, return_exceptions=True)


def _ending(
    worker: Worker, message: Mapping[str, Any] | None, answer: _Answer | None
) -> tuple[RunStatus, int | None]:
    if answer is not None:
        return RunStatus.FINISHED, answer.exit_code
    if message and "flood" in message:
        return RunStatus.OUTPUT, None
    if (message and "timeout" in message) or worker.exit_code == -signal.SIGXCPU:
        return RunStatus.TIMEOUT, None
    if worker.exit_code is None:
        return RunStatus.LOST, None
    return RunStatus.FINISHED, worker.exit_code
