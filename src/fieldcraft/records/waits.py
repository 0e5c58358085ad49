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

TOLD_AFTER_SECONDS = 2.0
SILENT_SECONDS = 60.0  # after a line, until the same waits are told again


@dataclass
class _Listener:
    """Listener to waits, with the time at which each kind of wait was told last."""

    tell: Callable[[str], None]
    told: dict[str, float] = field(default_factory=dict)

    def hear(self, who: str, whom: str, now: float) -> None:
        if now - self.told.get(who, -SILENT_SECONDS) >= SILENT_SECONDS:
            self.told[who] = now
            self.tell(f"{who} waits for {whom}")


_LISTENER: ContextVar[_Listener | None] = ContextVar("listener to waits", default=None)


@contextmanager
def hearing_waits(tell: Callable[[str], None]) -> Iterator[None]:
    """Call `tell` with a line for each long wait inside the block: it may come from another thread.
    Waits of the same `who` have one line a minute."""
    token = _LISTENER.set(_Listener(tell))
    try:
        yield
    finally:
        _LISTENER.reset(token)


def tell(line: str) -> None:
    """Tell another line to whoever listens to waits, such as that one was given up."""
    if (listener := _LISTENER.get()) is not None:
        listener.tell(line)


@contextmanager
def waiting(who: str, whom: str) -> Iterator[None]:
    """Tell if the block, around an `await`, takes longer than TOLD_AFTER_SECONDS. `who` is a kind
    of wait, such as "a search"; `whom` says what it waits for."""
    if (listener := _LISTENER.get()) is None:
        yield
        return
    loop = asyncio.get_running_loop()
    timer = loop.call_later(TOLD_AFTER_SECONDS, lambda: listener.hear(who, whom, loop.time()))
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def blocking(who: str, whom: str) -> Iterator[None]:
    """Tell as `waiting` does, from a thread, where the block holds up its whole thread."""
    if (listener := _LISTENER.get()) is None:
        yield
        return
    timer = threading.Timer(TOLD_AFTER_SECONDS, lambda: listener.hear(who, whom, time.monotonic()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
