"""Plain functions that run in threads next to the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def run_in_thread(
    function: Callable[[], T], discard: Callable[[T], object] = lambda _: None
) -> T:
    """Run a function in a dedicated daemon thread, and return its result or raise its exception.

    Unlike a thread of asyncio's pool it can be abandoned: if the caller stops waiting, a function
    that never returns blocks neither the exit of the process nor other calls. A result that arrives
    later is given to `discard`, in the event loop.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:  # noqa: BLE001 - it is raised again where it is awaited
            error = raised
        with suppress(RuntimeError):  # the loop is closed: no caller is waiting
            loop.call_soon_threadsafe(done.set_result, (result, error))

    def discard_late(done: asyncio.Future[tuple[T | None, BaseException | None]]) -> None:
        result, error = done.result()
        if error is None:
            discard(result)  # type: ignore[arg-type]

    threading.Thread(target=work, name="fieldcraft tool", daemon=True).start()
    try:
        result, error = await asyncio.shield(done)
    except asyncio.CancelledError:
        done.add_done_callback(discard_late)
        raise
    if isinstance(error, KeyboardInterrupt):  # Ctrl-C itself reaches only the main thread
        raise RuntimeError("the function raised KeyboardInterrupt") from error
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


def interrupt_thread(thread: threading.Thread) -> None:
    """Raise KeyboardInterrupt in another thread, as Ctrl-C does in the main thread.

    It is raised between two bytecode instructions, so a single library call finishes first. A
    thread that has ended is left unchanged.
    """
    if thread.is_alive() and thread.ident is not None:
        raised = ctypes.py_object(KeyboardInterrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), raised)
