"""Processes that compare mathematical answers: one that takes too long is killed and replaced."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from queue import Empty, SimpleQueue
from threading import Timer

from fieldcraft.types import UserError

WALL = 60  # times the limit of CPU time: a process that waits for nothing is only that slow


class MathWorker:
    """One process. It ends when its standard input does, so none outlives this one."""

    def __init__(self) -> None:
        """Raises UserError if it does not start."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fieldcraft.rewards.math_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        if not self._heard("ready"):
            self.close()
            raise UserError(
                "the process that compares mathematical answers does not start: run"
                f" {sys.executable} -m fieldcraft.rewards.math_worker to see why."
            )

    def ask(self, golds: list[str], answer: str, seconds: float) -> tuple[bool | None, bool | None]:
        """(whether a gold answer can be read, whether the answer equals one); None for what the
        process did not come to say before it ended."""
        guard = Timer(WALL * seconds, self._process.kill)
        guard.start()
        try:
            question = {"golds": golds, "answer": answer, "seconds": seconds}
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(question) + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                return None, None
            return self._heard("known"), self._heard("right")
        finally:
            guard.cancel()

    def _heard(self, key: str) -> bool | None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        said: dict[str, bool] = json.loads(line) if line.endswith("\n") else {}
        return said.get(key)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what was left to be written
                pipe.close()


class MathPool:
    """Workers that are asked side by side.

    Args:
        workers: how many there are at most; each is started when it is needed.
        seconds: of CPU time for one answer.
    """

    def __init__(self, workers: int, seconds: float) -> None:
        self.seconds = seconds
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="math")
        self._idle: SimpleQueue[MathWorker] = SimpleQueue()

    def submit(self, golds: list[str], answer: str) -> Future[float | None]:
        """1.0 if the answer equals one of the gold answers, else 0.0. An answer that takes too long
        is 0.0, too; gold answers that cannot be read, or take too long, are None."""
        return self._threads.submit(self._grade, golds, answer)

    def _grade(self, golds: list[str], answer: str) -> float | None:
        known, right = self._ask(golds, answer)
        if known is None:
            known, right = self._ask(golds, answer)  # it may have been killed from outside
        return float(right is True) if known else None

    def _ask(self, golds: list[str], answer: str) -> tuple[bool | None, bool | None]:
        try:
            worker = self._idle.get_nowait()
        except Empty:
            worker = MathWorker()
        known, right = worker.ask(golds, answer, self.seconds)
        if right is None:
            worker.close()
        else:
            self._idle.put(worker)
        return known, right

    def close(self) -> None:
        """End all workers."""
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().close()


@lru_cache
def shared_pool(workers: int, seconds: float) -> MathPool:
    """The one pool with these settings, which lives as long as this process. Raises UserError where
    Math-Verify is not installed."""
    if find_spec("math_verify") is None:
        raise UserError(
            "the reward 'math' needs Math-Verify: install it with pip install 'fieldcraft[code]'."
        )
    pool = MathPool(workers, seconds)
    atexit.register(pool.close)
    return pool
