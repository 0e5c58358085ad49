"""Concurrent jobs in an event loop, and a limit on their number."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar, TypeVarTuple

from fieldcraft.types import UserError

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")


class LoopValues(Generic[T]):
    """Values of event loops, one for each loop. `make` makes the value of a loop when it is first
    needed.

    The values of closed loops are dropped. Weak references to the loops would not suffice, because
    most values refer to their loop.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T:
        """Return the value of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            for known in list(self._values):  # a copy: loops of other threads add values, too
                if known.is_closed():
                    self._values.pop(known, None)
            self._values[loop] = self._make()
        return self._values[loop]

    def find(self) -> T | None:
        """Return the value of the running loop; None if it was not needed yet."""
        return self._values.get(asyncio.get_running_loop())

    def pop(self) -> T | None:
        """Remove and return the value of the running loop; None if it has none."""
        return self._values.pop(asyncio.get_running_loop(), None)


class ConcurrencyLimiter:
    """Limiter of the number of concurrent calls in an event loop. If a slot is free, a call gets it
    without yielding to the event loop."""

    def __init__(self, max_concurrent: int) -> None:
        self.max_concurrent = max_concurrent
        # A semaphore is bound to the loop that first waits for it, and a run has several loops.
        self._semaphores = LoopValues(lambda: asyncio.Semaphore(max_concurrent))

    def slot(self) -> asyncio.Semaphore:
        """Return the semaphore of the running loop."""
        return self._semaphores.get()


async def await_external(work: Awaitable[T]) -> T:
    """Await third-party code. A cancellation of this task that it swallows is raised at its end.

    `asyncio.wait_for` swallows one before Python 3.12, if the result arrives at the same time
    (https://github.com/python/cpython/issues/86296).
    """
    task = asyncio.current_task()
    assert task is not None
    cancellations = task.cancelling()
    result = await work
    if task.cancelling() > cancellations:
        raise asyncio.CancelledError
    return result


async def run_to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await work that cleans up, even if this task is cancelled meanwhile, however often."""
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    task.result()


async def run_concurrently(
    jobs: Iterable[tuple[*Arguments]],
    run: Callable[[*Arguments], Awaitable[T]],
    limit: int,
    on_done: Callable[[T], None] = lambda _: None,
) -> list[T]:
    """Run jobs, which are the arguments of `run`, at most `limit` at a time. They start in their
    order, and the results are returned in that order; `on_done` receives each as it arrives.

    The first error stops the other jobs and is raised. If several fail at once, a UserError is
    preferred.
    """
    semaphore = asyncio.Semaphore(limit)

    async def run_job(*arguments: *Arguments) -> T:
        async with semaphore:
            result = await run(*arguments)
        on_done(result)
        return result

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run_job(*arguments)) for arguments in jobs]
    except ExceptionGroup as errors:
        error = (errors.subgroup(UserError) or errors).exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise error
