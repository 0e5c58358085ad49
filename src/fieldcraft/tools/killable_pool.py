"""Processes for work on foreign input that may never end: one that takes too long is killed.

Regular expressions, parsers and computer algebra run for ever on some inputs, and in C code, where
no exception stops them. A module that does such work ends with `tools/killable_process.answer`.
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
    60  # times the limit of CPU time: a process that waits for nothing is only that slow
)
T = TypeVar("T")
DONE_KEY = "done"  # the key of the last line of an answer


class KillableProcess:
    """A process that runs a module. It ends when its standard input does, so none outlives this
    one."""

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
        """Ask the process, and return what it says within so many seconds of CPU time, all lines
        together. It lacks `DONE_KEY` where the process ended before it came to the end."""
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
            with suppress(BrokenPipeError):  # what was left to be written
                pipe.close()


class KillablePool:
    """Processes that run one module and are asked side by side.

    Args:
        module: what they run.
        workers: how many there are at most; each is started when it is needed.
        seconds: of CPU time for one answer.
    """

    def __init__(self, module: str, workers: int, seconds: float) -> None:
        self.module = module
        self.seconds = seconds
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=module)
        self._idle: SimpleQueue[KillableProcess] = SimpleQueue()
        atexit.register(self.close)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run something that asks in a thread, of which there are as many as processes."""
        return self._threads.submit(work)

    def request(self, question: dict[str, Any]) -> dict[str, Any]:
        """Ask as `KillableProcess.request` does. A process that ended is replaced for the next
        question."""
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
