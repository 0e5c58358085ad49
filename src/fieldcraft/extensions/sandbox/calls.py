"""Execution of one program by a worker, which always returns a `ProgramResult` in time."""

from __future__ import annotations

import asyncio
import base64
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from fieldcraft.extensions.sandbox import frames
from fieldcraft.extensions.sandbox.limits import (
    ProgramResult,
    ProgramStatus,
    SandboxLimits,
    truncate_output,
)
from fieldcraft.extensions.sandbox.usage_monitor import ExceededLimit
from fieldcraft.extensions.sandbox.worker import SandboxWorker

# A worker stops a program that is out of time by itself, and reports its location. If it does not
# respond, it is killed after this many further seconds.
GRACE_SECONDS = 0.25
_KILL_TIMEOUT_SECONDS = 30.0  # the kernel needs milliseconds; a machine that swaps needs more


@dataclass(frozen=True)
class ProgramRequest:
    """Program and its inputs."""

    code: str
    stdin: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)  # name in the private folder -> data
    fetch: Sequence[str] = ()  # names of files to return
    tests: Mapping[str, str] | None = None  # arguments of `isolated_tests.run_tests`

    def to_message(self, limits: SandboxLimits, single_use: bool) -> dict[str, Any]:
        """Return the message to a worker. With `single_use` the interpreter exits after the
        program."""
        return {
            "code": self.code,
            "files": {name: base64.b64encode(data).decode() for name, data in self.files.items()},
            "fetch": list(self.fetch),
            "once": single_use,
            "apart": self.tests is not None,
            "wall_seconds": limits.wall_seconds,
            "cpu_seconds": limits.cpu_seconds,
            "output_bytes": limits.output_bytes,
        }


class _CallEnd(Enum):
    """End of a call in which the program sent no report."""

    TIMED_OUT = auto()
    OUTPUT_FLOOD = auto()
    NO_ANSWER = auto()


async def execute(
    worker: SandboxWorker,
    request: ProgramRequest,
    limits: SandboxLimits,
    single_use: bool,
    kill: Callable[[SandboxWorker], None],
) -> ProgramResult:
    """Run a program in a ready worker. The worker is killed afterwards, unless the program finished
    in a session; without a report this function waits for its end."""
    started = time.perf_counter()
    for pipe in worker.outputs:
        pipe.start(limits.output_bytes)
    outcome = await _await_outcome(worker, request, limits, single_use)
    report = outcome if isinstance(outcome, frames.ProgramReport) else None
    if single_use or report is None:
        kill(worker)
    if report is None:
        async with asyncio.timeout(_KILL_TIMEOUT_SECONDS):
            await worker.terminated.wait()
    for pipe in worker.outputs:
        pipe.drain()
    status, exit_code = _determine_status(worker, outcome)
    stdout, stderr = (pipe.buffer for pipe in worker.outputs)
    return ProgramResult(
        status,
        exit_code,
        stdout.render(),
        stderr.render(),
        None
        if report is None or report.value is None
        else truncate_output(report.value, _get_max_value_bytes(limits)),
        time.perf_counter() - started,
        stdout.omitted_bytes + stderr.omitted_bytes,
        files={} if report is None else _name_files(request.fetch, report.files),
    )


def _name_files(names: Sequence[str], found: Sequence[bytes | None]) -> dict[str, bytes]:
    pairs = zip(names, found, strict=True)
    return {name: data for name, data in pairs if data is not None}


def _get_max_value_bytes(limits: SandboxLimits) -> int:
    """Return the maximum bytes of a truncated value, including the line about the gap."""
    return limits.output_bytes + 64


async def _await_outcome(
    worker: SandboxWorker, request: ProgramRequest, limits: SandboxLimits, single_use: bool
) -> frames.ProgramReport | _CallEnd:
    """Wait for the worker, and return its report, or the reason why it sent none."""
    deadline = time.monotonic() + limits.wall_seconds + GRACE_SECONDS

    async def exchange() -> bytes | frames.ProgramReport | None:
        stdin = request.stdin.encode("utf-8", "surrogateescape")
        await worker.send(request.to_message(limits, single_use), stdin)
        if request.tests is not None:
            await worker.send(dict(request.tests))
        return await worker.receive(len(request.fetch), _get_max_value_bytes(limits))

    exchange_task = asyncio.create_task(exchange())
    exit_task = asyncio.create_task(worker.exited.wait())
    flood_task = asyncio.create_task(worker.flooded.wait())
    try:
        waiting: set[asyncio.Task[Any]] = {exchange_task, exit_task, flood_task}
        while waiting:
            remaining = deadline - time.monotonic()
            done, waiting = await asyncio.wait(
                waiting, timeout=max(remaining, 0), return_when=asyncio.FIRST_COMPLETED
            )
            if flood_task in done:
                return _CallEnd.OUTPUT_FLOOD
            if exchange_task in done and (message := exchange_task.result()) is not None:
                return message if isinstance(message, frames.ProgramReport) else _CallEnd.TIMED_OUT
            if exit_task in done:  # its last message may still be in transit
                if exchange_task.done():
                    return _CallEnd.NO_ANSWER
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            if not done:
                return _CallEnd.NO_ANSWER if worker.exited.is_set() else _CallEnd.TIMED_OUT
        return _CallEnd.NO_ANSWER
    finally:
        for task in (exchange_task, exit_task, flood_task):
            task.cancel()
        await asyncio.gather(exchange_task, exit_task, flood_task, return_exceptions=True)


def _determine_status(
    worker: SandboxWorker, outcome: frames.ProgramReport | _CallEnd
) -> tuple[ProgramStatus, int | None]:
    if isinstance(outcome, frames.ProgramReport):
        return ProgramStatus.FINISHED, outcome.exit_code
    if outcome is _CallEnd.OUTPUT_FLOOD:
        return ProgramStatus.OUTPUT, None
    if worker.exceeded_limit is ExceededLimit.MEMORY:
        return ProgramStatus.MEMORY, None
    if (
        worker.exceeded_limit is ExceededLimit.CPU
        or outcome is _CallEnd.TIMED_OUT
        or worker.exit_code == -signal.SIGXCPU
    ):
        return ProgramStatus.TIMEOUT, None
    if worker.exit_code is None:
        return ProgramStatus.LOST, None
    return ProgramStatus.FINISHED, worker.exit_code
