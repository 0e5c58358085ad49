"""Waiting for a condition; one that never holds fails the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SECONDS = 300  # more than any condition needs


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


async def wait_until_async(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)
