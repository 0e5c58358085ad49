"""Interruption of an asynchronous stage without waiting for the step in training."""

import asyncio
import threading
from typing import Any

import pytest

from fieldcraft.config.rl import Rl
from fieldcraft.train.async_sampler import AsyncRolloutSampler, PendingGroup


class Separate:
    """Stub with the only engine method that a stream calls before sampling."""

    async def snapshot_weights(self) -> None: ...


def make_stream() -> AsyncRolloutSampler:
    settings = Rl.model_validate({"steps": 1, "optim": {"lr": 1e-2}, "async": {"max_staleness": 1}})
    nothing: Any = None
    engine: Any = Separate()
    return AsyncRolloutSampler(
        settings=settings, tasks=[], env=nothing, engine=engine, rubric=nothing, seed=0
    )


def test_closing_ends_a_step_in_the_middle() -> None:
    stream = make_stream()
    begun, ended = threading.Event(), threading.Event()

    def learn() -> None:
        try:
            begun.set()
            while True:
                pass
        finally:
            ended.set()

    async def run() -> None:
        await stream.open()
        training = asyncio.create_task(stream.train(learn))
        await asyncio.to_thread(begun.wait)
        training.cancel()
        await stream.close()

    asyncio.run(run())
    assert ended.is_set()


def test_an_interrupted_closing_has_ended_the_step() -> None:
    """A second interrupt comes while a rollout cleans up."""
    stream = make_stream()
    begun, given_up = threading.Event(), threading.Event()
    interrupted = list[int]()

    def learn() -> None:
        try:
            begun.set()
            while not given_up.is_set():
                pass
        except KeyboardInterrupt:
            interrupted.append(0)

    async def run() -> None:
        cleaning = asyncio.Event()

        async def clean_up_slowly() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cleaning.set()
                await asyncio.Event().wait()

        await stream.open()
        pending = PendingGroup(position=0, version=0, rollout_tasks=[])
        pending.group_task = asyncio.create_task(clean_up_slowly())
        stream.queue.append(pending)
        training = asyncio.create_task(stream.train(learn))
        await asyncio.to_thread(begun.wait)
        training.cancel()
        closing = asyncio.create_task(stream.close())
        await cleaning.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        given_up.set()

    asyncio.run(run())
    assert interrupted == [0]
