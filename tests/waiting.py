"""Waiting for a condition; the timeout of a test ends an endless wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def wait_until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.005)


async def wait_until_async(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)
