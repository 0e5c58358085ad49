"""Log messages for long waits: a wait of more than two seconds is logged with its cause.

Code that waits is nested deep inside a run and has no logger. So the caller that starts the work
sets one in the context, which the tasks and threads of asyncio inherit.
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
REPORT_INTERVAL_SECONDS = 60.0  # minimum time between two messages about the same kind of wait


@dataclass
class _WaitReporter:
    """Logger of waits, with the time of the last message about each kind of wait."""

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
    """Call `log` with a line for each long wait inside the block, possibly from another thread.
    Waits of the same `waiter` are logged at most once a minute."""
    token = _REPORTER.set(_WaitReporter(log))
    try:
        yield
    finally:
        _REPORTER.reset(token)


def log_line(line: str) -> None:
    """Log another line to the logger of waits, for example that a wait was abandoned."""
    if (reporter := _REPORTER.get()) is not None:
        reporter.log(line)


@contextmanager
def report_wait(waiter: str, awaited: str) -> Iterator[None]:
    """Log a message if the block, around an `await`, takes longer than REPORT_AFTER_SECONDS.
    `waiter` is a kind of wait, such as "a search"; `awaited` is the thing that it waits for."""
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
    """Log as `report_wait` does, from a thread, for a block that blocks its whole thread."""
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
