"""An interrupt of a caller that waits for a run ends the run: in notebooks, threads and asyncio."""

import _thread
import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from fieldcraft.runs.event_loop import await_in_thread, run_async
from fieldcraft.tools.threads import interrupt_thread

SECONDS = 300  # after which a test that hangs fails


class Work:
    """Work that never ends unless cancelled; `started` and `ended` report its state."""

    def __init__(self) -> None:
        self.started, self.ended = threading.Event(), threading.Event()

    async def waits(self) -> None:
        try:
            self.started.set()
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    async def computes(self) -> None:
        try:
            self.started.set()
            while True:
                pass
        finally:
            self.ended.set()

    async def waits_for_a_thread_that_computes(self) -> None:
        """Wait for a thread, as an asynchronous run does, whose learner runs next to the loop."""
        threads: list[threading.Thread] = []

        def computes() -> None:
            threads.append(threading.current_thread())
            asyncio.run(self.computes())

        try:
            await asyncio.to_thread(computes)
        finally:
            interrupt_thread(threads[0])


KINDS = [Work.waits, Work.computes, Work.waits_for_a_thread_that_computes]
Kind = Callable[[Work], Coroutine[Any, Any, None]]


@pytest.fixture
def work() -> Iterator[Work]:
    work = Work()
    yield work
    assert work.ended.wait(SECONDS)


def once_started(work: Work, act: Callable[[], None]) -> None:
    """Act in another thread as soon as the work has started."""

    def follow() -> None:
        assert work.started.wait(SECONDS)
        act()

    threading.Thread(target=follow, daemon=True).start()


def in_a_notebook(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run in a loop that, as a notebook kernel's, lets Ctrl-C raise KeyboardInterrupt."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.parametrize("kind", KINDS)
def test_interrupting_a_cell_ends_the_run(kind: Kind, work: Work) -> None:
    async def cell() -> None:
        once_started(work, _thread.interrupt_main)
        run_async(kind(work))

    with pytest.raises(KeyboardInterrupt):
        in_a_notebook(cell)


@pytest.mark.parametrize("kind", KINDS)
def test_interrupting_a_thread_ends_the_run(kind: Kind, work: Work) -> None:
    raised: list[BaseException] = []

    def waits() -> None:
        try:
            run_async(kind(work))
        except KeyboardInterrupt as error:
            raised.append(error)

    waiting = threading.Thread(target=waits, daemon=True)
    once_started(work, lambda: interrupt_thread(waiting))
    waiting.start()
    waiting.join(SECONDS)
    assert len(raised) == 1


def test_ctrl_c_within_asyncio_ends_the_run(work: Work) -> None:
    async def main() -> None:
        once_started(work, _thread.interrupt_main)
        run_async(work.waits())

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())


def test_results_and_errors_come_back() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 7

    async def fail() -> None:
        raise ValueError("odd")

    async def cell() -> None:
        assert run_async(answer()) == 7
        with pytest.raises(ValueError, match="odd"):
            run_async(fail())

    in_a_notebook(cell)
    assert run_async(answer()) == 7


def test_other_work_goes_on_while_a_run_is_awaited(work: Work) -> None:
    """The work waits for a message of the loop that awaits it, which `run_async` would block."""
    message = threading.Event()

    async def waits_for_a_message() -> str:
        await asyncio.to_thread(message.wait, SECONDS)
        work.ended.set()
        return "done"

    async def cell() -> str:
        waiting = asyncio.create_task(await_in_thread(waits_for_a_message()))
        await asyncio.sleep(0)
        message.set()
        return await waiting

    assert asyncio.run(cell()) == "done"


@pytest.mark.parametrize("kind", KINDS)
def test_cancelling_an_awaited_run_ends_it(kind: Kind, work: Work) -> None:
    async def cell() -> None:
        waiting = asyncio.create_task(await_in_thread(kind(work)))
        await asyncio.to_thread(work.started.wait, SECONDS)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cell())


def test_an_awaited_error_comes_back_with_the_context_of_the_cell() -> None:
    cell_name = contextvars.ContextVar("cell", default="none")

    async def fail() -> None:
        raise ValueError(cell_name.get())

    async def cell() -> None:
        cell_name.set("third")
        with pytest.raises(ValueError, match="third"):
            await await_in_thread(fail())

    asyncio.run(cell())
