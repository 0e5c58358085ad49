"""Event loops with simulated time, so that time limits neither slow tests down nor make them depend
on the speed of the machine.

`virtually` is for loops without threads, processes and sockets: waiting for these looks like
waiting for the next timer. For other loops use `Clock`.
"""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
MOST = 100_000  # seconds that a test may let pass: endless jumps are an error
ROUNDS = 50  # loop iterations in which pending input is read and ready tasks continue


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop that jumps to the next timer whenever nothing is ready."""

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
    """Real time of an event loop, with jumps at the test's request. A time limit can be so long
    that only a jump reaches it, and the jump can wait for events that must come first."""

    def __init__(self) -> None:
        self._loop = _JumpingLoop()  # closed until a loop runs
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
        """Advance the time after the loop has processed all ready work; called in other threads.
        Does not wait if no loop is running."""
        loop, done = self._loop, threading.Event()
        with suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(loop.jump, seconds, ROUNDS, done)
            while not (done.wait(0.05) or loop.is_closed()):
                pass
