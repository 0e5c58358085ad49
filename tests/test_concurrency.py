"""Concurrent jobs."""

import asyncio
import gc
import weakref

import pytest

from fieldcraft.concurrency import (
    ConcurrencyLimiter,
    await_external,
    run_concurrently,
    run_to_the_end,
)
from fieldcraft.types import UserError


def test_results_stand_in_the_order_of_the_jobs_and_few_run_at_once() -> None:
    running, most = 0, 0
    started, finished = list[int](), list[int]()

    async def run(number: int, wait: int) -> int:
        nonlocal running, most
        started.append(number)
        running += 1
        most = max(most, running)
        for _ in range(wait):
            await asyncio.sleep(0)
        running -= 1
        return number

    jobs = [(i, 10 - i) for i in range(10)]  # later ones are faster
    assert asyncio.run(run_concurrently(jobs, run, 3, finished.append)) == list(range(10))
    assert most == 3
    assert started == list(range(10))
    assert sorted(finished) == list(range(10))
    assert finished != started


def test_the_first_error_stops_the_others_and_is_raised_as_itself() -> None:
    cause, ended = OSError("the disk is full"), list[str]()

    async def run(name: str) -> None:
        if name == "bad":
            raise ValueError("bad") from cause
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    with pytest.raises(ValueError, match="bad") as caught:  # not an exception group
        asyncio.run(run_concurrently([("a",), ("bad",), ("b",)], run, 3))
    assert caught.value.__cause__ is cause
    assert "a" in ended


def test_of_several_errors_the_users_is_raised() -> None:
    async def run(error: Exception) -> None:
        await asyncio.sleep(0)
        raise error

    jobs = [(ValueError("a defect"),), (UserError("correct it."),)]
    with pytest.raises(UserError, match="correct it"):
        asyncio.run(run_concurrently(jobs, run, 2))


def test_a_limiter_keeps_no_closed_loop() -> None:
    limiter = ConcurrencyLimiter(1)
    loops = list[weakref.ref[asyncio.AbstractEventLoop]]()

    async def wait_for_a_slot() -> None:
        async with limiter.slot():
            await asyncio.sleep(0)

    async def use() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await asyncio.gather(wait_for_a_slot(), wait_for_a_slot())

    for _ in range(3):
        asyncio.run(use())
    gc.collect()
    assert [loop() is None for loop in loops[:2]] == [True, True]


async def swallow(begun: asyncio.Event) -> str:
    begun.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "a result"
    raise AssertionError


def test_a_swallowed_cancellation_is_raised() -> None:
    async def story() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(await_external(swallow(begun)))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())


def test_a_task_that_was_cancelled_before_gets_its_result() -> None:
    async def get() -> str:
        return "a result"

    async def clean_up() -> str:
        task = asyncio.current_task()
        assert task is not None
        try:
            task.cancel()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return await await_external(get())
        raise AssertionError

    assert asyncio.run(clean_up()) == "a result"


def test_work_that_cleans_up_ends_despite_several_cancellations() -> None:
    ended = list[str]()

    async def story() -> None:
        begun, allowed = asyncio.Event(), asyncio.Event()

        async def clean_up() -> None:
            begun.set()
            await allowed.wait()
            ended.append("cleaned up")

        task = asyncio.create_task(run_to_the_end(clean_up()))
        await begun.wait()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not task.done()
        allowed.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert ended == ["cleaned up"]


def test_an_error_of_work_that_cleans_up_is_raised() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        asyncio.run(run_to_the_end(fail()))


def test_a_cancellation_of_the_work_itself_is_raised() -> None:
    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    async def story() -> None:
        with pytest.raises(asyncio.CancelledError):
            await run_to_the_end(cancel_itself())

    asyncio.run(story())
