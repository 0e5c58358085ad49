"""One call of a worker: a program goes in, and whatever happens, a `Run` comes out in time."""

from __future__ import annotations

import asyncio
import base64
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from fieldcraft.sandbox import frames
from fieldcraft.sandbox.clipping import clip
from fieldcraft.sandbox.limits import Limits, Run, RunStatus
from fieldcraft.sandbox.watch import Over
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
        """Return the message to a worker; `once`: the interpreter ends with the program."""
        return {
            "code": self.code,
            "files": {name: base64.b64encode(data).decode() for name, data in self.files.items()},
            "fetch": list(self.fetch),
            "once": once,
            "apart": self.tests is not None,
            "wall_seconds": limits.wall_seconds,
            "cpu_seconds": limits.cpu_seconds,
            "output_bytes": limits.output_bytes,
        }


class _Ended(Enum):
    """End of a call in which the program gave no answer."""

    OUT_OF_TIME = auto()
    FLOOD = auto()
    WITHOUT_A_WORD = auto()


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
    said = await _said(worker, request, limits, once)
    answer = said if isinstance(said, frames.Answer) else None
    if once or answer is None:
        kill(worker)
    if answer is None:
        await asyncio.wait_for(worker.gone.wait(), _DYING_SECONDS)
    for pipe in worker.outputs:
        pipe.drain()
    status, exit_code = _ending(worker, said)
    stdout, stderr = (pipe.kept for pipe in worker.outputs)
    return Run(
        status,
        exit_code,
        stdout.text(),
        stderr.text(),
        None if answer is None or answer.value is None else clip(answer.value, _most(limits)),
        time.perf_counter() - began,
        stdout.left_out + stderr.left_out,
        files={} if answer is None else _files(request.fetch, answer.files),
    )


def _files(names: Sequence[str], found: Sequence[bytes | None]) -> dict[str, bytes]:
    pairs = zip(names, found, strict=True)
    return {name: data for name, data in pairs if data is not None}


def _most(limits: Limits) -> int:
    """Return the most bytes of a value that was clipped: with the line about the gap."""
    return limits.output_bytes + 64


async def _said(
    worker: Worker, request: Request, limits: Limits, once: bool
) -> frames.Answer | _Ended:
    """Wait for the worker, and return what it answers, or what happened to it."""
    deadline = time.monotonic() + limits.wall_seconds + GRACE_SECONDS

    async def talk() -> bytes | frames.Answer | None:
        stdin = request.stdin.encode("utf-8", "surrogateescape")
        await worker.tell(request.message(limits, once), stdin)
        if request.tests is not None:
            await worker.tell(dict(request.tests))
        return await worker.hear(len(request.fetch), _most(limits))

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
                return _Ended.FLOOD
            if talking in done and (message := talking.result()) is not None:
                return message if isinstance(message, frames.Answer) else _Ended.OUT_OF_TIME
            if ended in done:  # its last words may still be on the way
                if talking.done():
                    return _Ended.WITHOUT_A_WORD
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            if not done:
                return _Ended.WITHOUT_A_WORD if worker.exited.is_set() else _Ended.OUT_OF_TIME
        return _Ended.WITHOUT_A_WORD
    finally:
        for task in (talking, ended, flooded):
            task.cancel()
        await asyncio.gather(talking, ended, flooded, return_exceptions=True)


def _ending(worker: Worker, said: frames.Answer | _Ended) -> tuple[RunStatus, int | None]:
    if isinstance(said, frames.Answer):
        return RunStatus.FINISHED, said.exit_code
    if said is _Ended.FLOOD:
        return RunStatus.OUTPUT, None
    if worker.over is Over.MEMORY:
        return RunStatus.MEMORY, None
    if worker.over is Over.CPU or said is _Ended.OUT_OF_TIME or worker.exit_code == -signal.SIGXCPU:
        return RunStatus.TIMEOUT, None
    if worker.exit_code is None:
        return RunStatus.LOST, None
    return RunStatus.FINISHED, worker.exit_code
