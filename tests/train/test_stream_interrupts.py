"""Interruption of an asynchronous stage without waiting for the step in training."""

import asyncio
import threading
from typing import Any

from fieldcraft.config.rl import Rl
from fieldcraft.train.async_sampler import AsyncRolloutSampler


class Separate:
    """Stub with the only engine method that a stream calls before sampling."""

    async def snapshot_weights(self) -> None: ...


def test_closing_ends_a_step_in_the_middle() -> None:
    settings = Rl.model_validate({"steps": 1, "optim": {"lr": 1e-2}, "async": {"max_staleness": 1}})
    nothing: Any = None
    engine: Any = Separate()
    stream = AsyncRolloutSampler(
        settings=settings, tasks=[], env=nothing, engine=engine, rubric=nothing, seed=0
    )
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
