"""The event loop of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Do all of `work` in an event loop of its own and return its result.

    Where a loop is running already, as in a notebook, it runs in another thread meanwhile.
    """
    if not _inside_a_loop():
        return asyncio.run(_stoppable(work))
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, _stoppable(work)).result()


async def _stoppable(work: Coroutine[Any, Any, T]) -> T:
    """Ctrl-C cancels the work where it next waits. Were it to wait no more, that would be lost, so
    it waits once at its end."""
    result = await work
    await asyncio.sleep(0)
    return result


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
