"""Pool of processes for work on untrusted input that may never end: a slow process is killed.

Regular expressions, parsers and computer algebra run forever on some inputs, in C code that no
exception can interrupt. A module for such work ends with `tools/killable_worker.serve_requests`.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Timer
from typing import Any, TypeVar

from fieldcraft.types import UserError

WALL_TIME_FACTOR = (
    60  # times the CPU time limit: wall-clock bound for a process that does not wait for anything
)
T = TypeVar("T")
DONE_KEY = "done"  # key in the last line of a reply


class KillableProcess:
    """Process that runs a module. It exits when its standard input is closed, so it never outlives
    this process."""

    def __init__(self, module: str) -> None:
        """Start the process. Raises UserError if it does not start."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        if DONE_KEY not in self._read_reply():
            self.close()
            raise UserError(
                f"a worker process of fieldcraft failed to start: run {sys.executable} -m {module}"
                " to see the error."
            )

    def request(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a question, and return all lines of the reply, merged, within `seconds` of CPU time.

        The reply lacks `DONE_KEY` if the process exited before it had finished.
        """
        timer = Timer(WALL_TIME_FACTOR * seconds, self._process.kill)
        timer.start()
        try:
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps({"seconds": seconds, "of": question}) + "\n")
                self._process.stdin.flush()
            return self._read_reply()
        finally:
            timer.cancel()

    def _read_reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        reply: dict[str, Any] = {}
        while DONE_KEY not in reply:
            line = self._process.stdout.readline()
            if not line.endswith("\n"):
                break
            reply |= json.loads(line)
        return reply

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # bytes that were still buffered
                pipe.close()


class KillablePool:
    """Pool of processes that run one module and work concurrently.

    Args:
        module: module that the processes run.
        workers: maximum number of processes; each is started on demand.
        seconds: CPU time limit of one reply.
    """

    def __init__(self, module: str, workers: int, seconds: float) -> None:
        self.module = module
        self.seconds = seconds
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=module)
        self._idle: SimpleQueue[KillableProcess] = SimpleQueue()
        atexit.register(self.close)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run a function that sends requests in a thread, of which there is one per process."""
        return self._threads.submit(work)

    def request(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send a request, see `KillableProcess.request`. A process that exited is replaced for the
        next request."""
        try:
            process = self._idle.get_nowait()
        except Empty:
            process = KillableProcess(self.module)
        reply = process.request(question, self.seconds)
        if DONE_KEY in reply:
            self._idle.put(process)
        else:
            process.close()
        return reply

    def close(self) -> None:
        """End all processes."""
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().close()
