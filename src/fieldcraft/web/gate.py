"""Politeness: how many requests a host gets at once, and how long after one the next begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from weakref import WeakKeyDictionary

from fieldcraft.records.waits import waiting


@dataclass
class _Host:
    places: asyncio.Semaphore
    free_at: float = field(default=0.0)  # of the loop's clock


class HostGate:
    """Gate for at most `concurrent` requests to a host at once, each at least `interval` seconds
    after the last one began, and after the last one ended where there is one at a time."""

    def __init__(self, concurrent: int, interval: float) -> None:
        self._concurrent = concurrent
        self._interval = interval
        self._hosts: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Host]] = (
            WeakKeyDictionary()
        )

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[None]:
        """Wait for a place at a host, and keep it in the block."""
        loop = asyncio.get_running_loop()
        hosts = self._hosts.setdefault(loop, {})
        of = hosts.setdefault(host, _Host(asyncio.Semaphore(self._concurrent)))
        with ExitStack() as wait:
            wait.enter_context(waiting("a request of the web", f"its turn at {host}"))
            async with of.places:
                start = max(loop.time(), of.free_at)
                of.free_at = start + self._interval
                await asyncio.sleep(start - loop.time())
                wait.close()
                try:
                    yield
                finally:
                    if self._concurrent == 1:
                        of.free_at = loop.time() + self._interval


@cache  # a run opens its tools several times; they share the gate
def host_gate(concurrent: int, interval: float) -> HostGate:
    """Return the gate of all tools with these settings in this process."""
    return HostGate(concurrent, interval)
