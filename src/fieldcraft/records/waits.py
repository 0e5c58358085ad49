"""Long waits are told: whoever waits for more than two seconds says for whom.

What waits lies deep in a run, and knows nothing of its reader. So whoever begins the work says who
listens, and all that is done inside is heard, in tasks and in threads of asyncio.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

REPORT_AFTER_SECONDS = 2.0
REPORT_INTERVAL_SECONDS = 60.0  # after a line, until the same waits are told again


@dataclass
class _WaitReporter:
    """Listener to waits, with the time at which each kind of wait was told last."""

    log: Callable[[str], None]
    last_reported: dict[str, float] = field(default_factory=dict)

    def report(self, waiter: str, awaited: str, now: float) -> None:
        if (
            now - self.last_reported.get(waiter, -REPORT_INTERVAL_SECONDS)
            >= REPORT_INTERVAL_SECONDS
        ):
            self.last_reported[waiter] = now
            self.log(f"{waiter} waits for {awaited}")


_REPORTER: ContextVar[_WaitReporter | None] = ContextVar("listener to waits", default=None)


@contextmanager
def report_waits_to(log: Callable[[str], None]) -> Iterator[None]:
    """Call `log` with a line for each long wait inside the block: it may come from another thread.
    Waits of the same `waiter` have one line a minute."""
    token = _REPORTER.set(_WaitReporter(log))
    try:
        yield
    finally:
        _REPORTER.reset(token)


def log_line(line: str) -> None:
    """Tell another line to whoever listens to waits, such as that one was given up."""
    if (reporter := _REPORTER.get()) is not None:
        reporter.log(line)


@contextmanager
def report_wait(waiter: str, awaited: str) -> Iterator[None]:
    """Tell if the block, around an `await`, takes longer than REPORT_AFTER_SECONDS. `waiter` is a
    kind of wait, such as "a search"; `awaited` says what it waits for."""
    if (reporter := _REPORTER.get()) is None:
        yield
        return
    loop = asyncio.get_running_loop()
    timer = loop.call_later(
        REPORT_AFTER_SECONDS, lambda: reporter.report(waiter, awaited, loop.time())
    )
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def report_blocking_wait(waiter: str, awaited: str) -> Iterator[None]:
    """Tell as `report_wait` does, from a thread, where the block holds up its whole thread."""
    if (reporter := _REPORTER.get()) is None:
        yield
        return
    timer = threading.Timer(
        REPORT_AFTER_SECONDS, lambda: reporter.report(waiter, awaited, time.monotonic())
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
