"""An event loop whose time passes only where everybody waits, and then at once.

A test with time limits needs no real time and cannot be late. A loop with threads, processes or
sockets must not use it: to wait for these looks like waiting for the next timer.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
