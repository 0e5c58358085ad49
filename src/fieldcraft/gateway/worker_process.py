"""A worker in a Python of its own, which is asked and answers in lines of JSON."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fieldcraft.records.files import open_log
from fieldcraft.tools.descendants import Descendants
from fieldcraft.types import UserError

LONGEST = 2**28  # bytes of an answer: a trace has the ids of all its tokens
PATIENCE = 10  # seconds for a worker to end before it is killed


class WorkerEnded(Exception):
    """The worker is no more, so what it was asked has no answer."""


class WorkerProcess:
    """A process that answers requests by their `id`, in any order. It ends with this process,
    because its input does.

    Args:
        command: of the process.
        opening: its first line.
        log: the file that gets what it prints.
    """

    def __init__(self, command: Sequence[str], opening: Mapping[str, Any], log: Path) -> None:
        self.command, self.opening, self.log = command, opening, log
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self._descendants = Descendants()

    async def start(self) -> dict[str, Any]:
        """Start the process, and return its answer to the opening. Raises UserError if it does not
        begin."""
        try:
            with open_log(self.log) as output:
                self._process = await self._descendants.begin(
                    self.command, {}, stdin=PIPE, stdout=PIPE, stderr=output, limit=LONGEST
                )
        except OSError as error:
            raise UserError(
                f"environment.python={self.command[0]} is no Python that runs ({error}): give the"
                " path of the interpreter that has verifiers."
            ) from error
        self._write(self.opening)
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            await self.close()
            raise UserError(f"the environment did not open ({self.cause()}): correct that.")
        self._reading = asyncio.create_task(self._read(self._process.stdout))
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def alive(self) -> bool:
        return self._process.returncode is None and not self._reading.done()

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the process, and return the answer to a request; it is cancelled there where it is
        cancelled here. Raises WorkerEnded."""
        if not self.alive:
            raise WorkerEnded(self.cause())
        self._number += 1
        number = self._number
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._write({**request, "id": number})
            return await answer
        except asyncio.CancelledError:
            self._write({"cancel": number})
            raise
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._process.wait()
        self._descendants.kill_group(self._process.pid)
        await self._process.wait()
        # descendants held its output open until now, and `Process` itself closes no pipes
        self._process._transport.close()  # type: ignore[attr-defined]

    def cause(self) -> str:
        """Return the last line that it printed."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip()[:200] if lines else "it printed nothing"

    def _write(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")

    async def _read(self, lines: asyncio.StreamReader) -> None:
        try:
            while line := await lines.readline():
                answer = json.loads(line)
                waiting = self._waiting.get(answer["id"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(WorkerEnded(self.cause()))
