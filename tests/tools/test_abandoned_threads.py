"""Results of functions in threads for which the caller no longer waits."""

import asyncio
import threading

import pytest

from fieldcraft.tools.threads import run_in_thread


@pytest.mark.parametrize("rounds", range(6))
def test_a_result_is_returned_or_discarded(rounds: int) -> None:
    """The caller is cancelled some iterations of the event loop after the function has returned."""
    begun, allowed = threading.Event(), threading.Event()
    threads, discarded = list[threading.Thread](), list[str]()

    def work() -> str:
        threads.append(threading.current_thread())
        begun.set()
        allowed.wait()
        return "a game"

    async def story() -> list[str]:
        task = asyncio.create_task(run_in_thread(work, discarded.append))
        await asyncio.to_thread(begun.wait)
        allowed.set()
        threads[0].join()
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        for _ in range(3):  # until the result has been discarded
            await asyncio.sleep(0)
        return discarded if task.cancelled() else [task.result()]

    assert asyncio.run(story()) == ["a game"]
    assert len(discarded) == (rounds < 3)


def test_an_error_that_arrives_later_is_dropped() -> None:
    begun, allowed = threading.Event(), threading.Event()
    threads, discarded = list[threading.Thread](), list[None]()

    def fail() -> None:
        threads.append(threading.current_thread())
        begun.set()
        allowed.wait()
        raise OSError

    async def story() -> None:
        task = asyncio.create_task(run_in_thread(fail, discarded.append))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        allowed.set()
        threads[0].join()
        for _ in range(3):
            await asyncio.sleep(0)

    asyncio.run(story())
    assert discarded == []
