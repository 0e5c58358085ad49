"""Concurrent jobs."""

import asyncio

import pytest

from fieldcraft.concurrency import run_concurrently
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
