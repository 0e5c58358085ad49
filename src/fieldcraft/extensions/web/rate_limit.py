"""Rate limits per host: number of concurrent requests, and interval between requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache

from fieldcraft.concurrency import LoopValues
from fieldcraft.records.waits import report_wait


@dataclass
class _HostState:
    semaphore: asyncio.Semaphore
    start_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # of the next request to start
    next_start: float = 0.0  # time of the loop's clock


class HostRateLimiter:
    """Limiter of requests to a host: at most `concurrent` at the same time, each at least
    `interval_seconds` after the start of the previous one, and after its end if `concurrent` is
    1."""

    def __init__(self, concurrent: int, interval_seconds: float) -> None:
        self._concurrent = concurrent
        self._interval_seconds = interval_seconds
        self._hosts = LoopValues[dict[str, _HostState]](dict)

    @asynccontextmanager
    async def slot(self, host: str) -> AsyncIterator[None]:
        """Wait for a slot at a host, and hold it in the block."""
        loop = asyncio.get_running_loop()
        state = self._hosts.get().setdefault(host, _HostState(asyncio.Semaphore(self._concurrent)))
        with ExitStack() as wait_notice:
            wait_notice.enter_context(report_wait("a request of the web", f"its turn at {host}"))
            async with state.semaphore:
                # The interval begins at the actual start: a request that is cancelled while it
                # waits does not delay the others.
                async with state.start_lock:
                    await asyncio.sleep(state.next_start - loop.time())
                    state.next_start = loop.time() + self._interval_seconds
                wait_notice.close()
                try:
                    yield
                finally:
                    if self._concurrent == 1:
                        state.next_start = loop.time() + self._interval_seconds


@cache  # a run opens its tools several times; they share the limiter
def get_rate_limiter(concurrent: int, interval_seconds: float) -> HostRateLimiter:
    """Return the limiter of all tools with these settings in this process."""
    return HostRateLimiter(concurrent, interval_seconds)
