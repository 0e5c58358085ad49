"""Worker process in a separate Python interpreter, with requests and replies as lines of JSON."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fieldcraft.concurrency import run_to_the_end
from fieldcraft.records.files import open_log
from fieldcraft.tools.descendants import ProcessDescendants
from fieldcraft.types import UserError

MAX_LINE_BYTES = 2**28  # bytes of a reply: a trace has the ids of all its tokens
EXIT_TIMEOUT_SECONDS = 10  # seconds for a worker to exit before it is killed


class WorkerExitedError(Exception):
    """The worker has exited, so its open requests have no reply."""


class WorkerProcess:
    """Process that answers requests by their `id`, in any order. It exits with this process,
    because its input is closed.

    Args:
        command: command line of the process.
        handshake: first line of its input.
        log_file: file that receives its standard error.
    """

    def __init__(
        self, command: Sequence[str], handshake: Mapping[str, Any], log_file: Path
    ) -> None:
        self.command, self.handshake, self.log_file = command, handshake, log_file
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_request_id = 0
        self._descendants = ProcessDescendants()

    async def start(self) -> dict[str, Any]:
        """Start the process, and return its reply to the handshake. If this fails or is cancelled,
        the process is killed. Raises UserError if it does not start."""
        try:
            with open_log(self.log_file) as output:
                self._process = await self._descendants.start(
                    self.command, {}, stdin=PIPE, stdout=PIPE, stderr=output, limit=MAX_LINE_BYTES
                )
        except OSError as error:
            raise UserError(
                f"environment.python={self.command[0]} is not a working Python interpreter"
                f" ({error}): give the path of the interpreter that has the environment's package."
            ) from error
        try:
            return await self._exchange_handshake()
        except BaseException:
            await run_to_the_end(self._kill())
            raise

    async def _exchange_handshake(self) -> dict[str, Any]:
        self._write(self.handshake)
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            await self._wait_for_exit()
            raise UserError(
                f"the environment did not open ({self.read_exit_reason()}): fix this error."
            )
        response: dict[str, Any] = json.loads(line)
        self._reader_task = asyncio.create_task(self._read_responses(self._process.stdout))
        return response

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and not self._reader_task.done()

    async def send_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request, and return its reply. If this call is cancelled, the worker cancels the
        request, too. Raises WorkerExitedError if the process exits."""
        if not self.is_alive:
            raise WorkerExitedError(self.read_exit_reason())
        self._last_request_id += 1
        request_id = self._last_request_id
        response = self._pending[request_id] = asyncio.get_running_loop().create_future()
        try:
            self._write({**request, "id": request_id})
            return await response
        except asyncio.CancelledError:
            self._write({"cancel": request_id})
            raise
        finally:
            self._pending.pop(request_id, None)

    async def close(self) -> None:
        """End the process, and kill it with its descendants if it does not exit in time, or if this
        call is cancelled."""
        try:
            await self._wait_for_exit()
        finally:
            await run_to_the_end(self._kill())

    async def _wait_for_exit(self) -> None:
        """Close the input of the process, and wait for its exit until a time limit."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_TIMEOUT_SECONDS):
                await self._process.wait()

    async def _kill(self) -> None:
        """Kill the process and its descendants, and close its pipes."""
        # in a thread: it reads the environments of all processes
        await asyncio.to_thread(self._descendants.kill_group, self._process.pid)
        await self._process.wait()
        # descendants kept its output open until now, and `Process` itself does not close pipes
        self._process._transport.close()  # type: ignore[attr-defined]

    def read_exit_reason(self) -> str:
        """Return the last line that the process printed."""
        lines = self.log_file.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip()[:200] if lines else "it printed nothing"

    def _write(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")

    async def _read_responses(self, lines: asyncio.StreamReader) -> None:
        try:
            while line := await lines.readline():
                response = json.loads(line)
                pending = self._pending.get(response["id"])
                if pending is not None and not pending.done():
                    pending.set_result(response)
        finally:
            for pending in self._pending.values():
                if not pending.done():
                    pending.set_exception(WorkerExitedError(self.read_exit_reason()))
