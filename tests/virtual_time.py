"""Event loops whose time is not that of the machine, so that no limit of time makes a test slow or
lets it fail where the machine is.

`virtually` is for loops without threads, processes and sockets: to wait for these looks like
waiting for the next timer. For the others there is `Clock`.
"""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
MOST = 100_000  # seconds that a test may let pass: what jumps without end is a mistake
ROUNDS = 50  # of a loop, in which what has come is read and what is free to go on goes on


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer whenever nothing is ready."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]
        if timers and not self._ready:
            self.now = max(self.now, min(timers))
        super()._run_once()


def virtually(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class _JumpingLoop(asyncio.SelectorEventLoop):
    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    def jump(self, seconds: float, rounds: int, done: threading.Event) -> None:
        if rounds:
            self.call_soon(self.jump, seconds, rounds - 1, done)
        else:
            self.ahead += seconds
            done.set()


class Clock:
    """The time of an event loop, which is real and jumps where a test says so. A limit can be that
    long that only a jump reaches it, and the jump can wait for what has to come before."""

    def __init__(self) -> None:
        self._loop = _JumpingLoop()  # closed, until there is one to run in
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, as asyncio.run does."""

        def make_loop() -> _JumpingLoop:
            self._loop = _JumpingLoop()
            return self._loop

        async def limited() -> T:
            async with asyncio.timeout(MOST):
                return await work

        with asyncio.Runner(loop_factory=make_loop) as runner:
            return runner.run(limited())

    def jump(self, seconds: float) -> None:
        """Let time pass when the loop has done what it could; called in other threads. Nothing is
        waited for where no loop runs."""
        loop, done = self._loop, threading.Event()
        with suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(loop.jump, seconds, ROUNDS, done)
            while not (done.wait(0.05) or loop.is_closed()):
                pass
