"""Event loop of a run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

from fieldcraft.tools.threads import interrupt_thread

T = TypeVar("T")
POLL_SECONDS = 0.1  # between checks whether the waiting thread was interrupted
GRACE_SECONDS = 0.8  # for cancelled work to end, and then again for work that is interrupted


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in a new event loop and return its result.

    If a loop is already running, as in a notebook, and outside of the main thread, it runs in a
    separate thread. An interrupt of the waiting thread cancels the work at its next await, or
    interrupts it during computation if it does not await.
    """
    if threading.current_thread() is threading.main_thread() and not _has_running_loop():
        return asyncio.run(_interruptible(work))
    return _LoopThread(work).result()


async def await_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in the event loop of a separate thread and return its result, while the running
    loop does other work. Cancelling the waiting task stops the work like an interrupt."""
    return await _LoopThread(work).wait()


class _LoopThread(Generic[T]):
    """Event loop in a daemon thread, which does not prevent the process from exiting."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._started: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, Any]] = (
            concurrent.futures.Future()
        )
        context = contextvars.copy_context()  # a notebook finds the cell of an output in it
        self._thread = threading.Thread(
            target=context.run, args=[self._run], name="fieldcraft run", daemon=True
        )

    def result(self) -> T:
        """Run the work and return its result. Any interrupt of the waiting thread stops the work
        before it is re-raised."""
        waiting = _current_task()
        before = waiting.cancelling() if waiting else 0
        try:
            self._thread.start()
            while not self._wait_until_done(POLL_SECONDS):
                # Ctrl-C within asyncio.run only cancels its task, which is the one that waits here
                if waiting and waiting.cancelling() > before:
                    raise asyncio.CancelledError
        except BaseException:
            self._stop()
            raise
        return self._outcome.result()

    async def wait(self) -> T:
        """Run the work and return its result. Cancellation stops the work before it is
        re-raised."""
        self._thread.start()
        try:
            return await asyncio.shield(asyncio.wrap_future(self._outcome))
        except asyncio.CancelledError:
            await asyncio.to_thread(self._stop)
            raise

    def _wait_until_done(self, seconds: float) -> bool:
        return bool(concurrent.futures.wait([self._outcome], seconds).done)

    def _stop(self) -> None:
        """Cancel the work; if it continues, raise KeyboardInterrupt in its thread."""
        with suppress(TimeoutError, RuntimeError):  # not started, or its loop is already closed
            loop, task = self._started.result(GRACE_SECONDS)
            loop.call_soon_threadsafe(task.cancel)
        if not self._wait_until_done(GRACE_SECONDS):
            interrupt_thread(self._thread)
            self._wait_until_done(GRACE_SECONDS)

    def _run(self) -> None:
        try:
            self._outcome.set_result(asyncio.run(self._run_tracked()))
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is waited for
            self._outcome.set_exception(error)

    async def _run_tracked(self) -> T:
        self._started.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await _interruptible(self._work)


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Await the work, so that Ctrl-C cancels it at its next await. A final await delivers a pending
    cancellation of work that does not await again."""
    result = await work
    await asyncio.sleep(0)
    return result


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _current_task() -> asyncio.Task[Any] | None:
    return asyncio.current_task() if _has_running_loop() else None
