"""Engines in Ray processes: the same samples as in this process, even if one is killed."""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_parity import PROMPT, TOKENIZER, sharp_model
from fieldcraft.engine.base import PolicyEngine
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.resources import RunResources
from fieldcraft.extensions.cluster.engine_group import EngineGroup
from fieldcraft.extensions.cluster.engine_pool import EnginePool
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.types import UserError

pytestmark = pytest.mark.long


class Scene:
    """Model in training, its engines, and their log messages."""

    def __init__(self, engines: EnginePool, folder: Path) -> None:
        self.messages: list[Any] = []
        self.engines = engines
        engines.resources = RunResources(folder, self.messages.append)
        self.model = sharp_model(folder / "model", "qwen3")
        self.group: EngineGroup = engines.make_group(self.model, TOKENIZER, max_num_seqs=32)

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def run_and_close() -> Any:
            try:
                async with asyncio.timeout(300):  # a defect must not hang
                    return await work()
            finally:
                await self.group.close()

        return asyncio.run(run_and_close())


async def turns(engine: PolicyEngine, count: int, tokens: int = 24) -> list[Completion]:
    """Sample turns of sessions with different prompts."""
    calls = [
        engine.generate([*PROMPT, 5 + i], SamplingParams(tokens, seed=i), f"s{i}")
        for i in range(count)
    ]
    return await asyncio.gather(*calls)


def change(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)


def alike(found: list[Completion], expected: list[Completion]) -> None:
    assert [one.ids for one in found] == [one.ids for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.versions == other.versions


def test_they_sample_what_one_engine_here_samples(engines: EnginePool, tmp_path: Path) -> None:
    scene = Scene(engines, tmp_path)
    local = LocalEngine(scene.model, TOKENIZER, max_num_seqs=32)

    async def work() -> None:
        await scene.group.update_weights(1)
        await local.update_weights(1)
        alike(await turns(scene.group, 8), await turns(local, 8))
        await scene.group.sleep()
        change(scene.model)
        await scene.group.update_weights(2)
        await local.update_weights(2)
        alike(await turns(scene.group, 8), await turns(local, 8))

    scene.run(work)
    parameters = sum(p.numel() for p in scene.model.parameters())
    assert scene.group.last_update_metrics["publish_bytes"] == 2 * 4 * parameters
    assert scene.messages == []


def test_turns_under_way_go_on_with_the_new_weights(engines: EnginePool, tmp_path: Path) -> None:
    scene = Scene(engines, tmp_path)

    async def work() -> None:
        """Publish new weights during turns until some reach an engine in the middle of one."""
        await scene.group.update_weights(1)
        await scene.group.snapshot_weights()
        version, crossed = 1, False
        while not crossed:
            pending = asyncio.create_task(turns(scene.group, 4, tokens=200))
            await asyncio.sleep(0)  # the requests are sent
            change(scene.model)
            version += 1
            await scene.group.update_weights(version)
            for one in await pending:
                versions = [version for version, _ in one.versions]
                assert versions in ([version - 1], [version], [version - 1, version])
                assert sum(count for _, count in one.versions) == len(one.ids)
                crossed = crossed or len(versions) == 2

    scene.run(work)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_engine_may_be_killed_at_any_moment(
    engines: EnginePool, tmp_path: Path, seed: int
) -> None:
    scene = Scene(engines, tmp_path)
    local = LocalEngine(scene.model, TOKENIZER, max_num_seqs=32)
    moment = random.Random(seed)

    async def work() -> None:
        await scene.group.update_weights(1)
        process = await scene.engines.actors[moment.randrange(2)].actor.get_process_id.remote()
        pending = asyncio.create_task(turns(scene.group, 12, tokens=200))
        await asyncio.sleep(moment.uniform(0, 1))
        os.kill(process, signal.SIGKILL)
        found = await pending
        while not scene.group.engine_restarts:  # all turns had ended, or were on the other engine
            found = await turns(scene.group, 12, tokens=200)
        # The restarted engine has the current weights.
        change(scene.model)
        await scene.group.update_weights(2)
        while len(scene.group.live_engines) < 2:
            await turns(scene.group, 2)
            await asyncio.sleep(0.2)
        await local.update_weights(1)
        change_back(scene.model)
        alike(found, await turns(local, 12, tokens=200))

    scene.run(work)
    assert scene.group.engine_restarts == 1
    assert "crashed" in scene.messages[0].text


def test_an_engine_that_hangs_is_ended(
    engines: EnginePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs before its first request, and the other engine may take any time."""
    monkeypatch.setattr(engines.actors[1], "heartbeat_timeout_seconds", 2.0)
    scene = Scene(engines, tmp_path)
    local = LocalEngine(scene.model, TOKENIZER, max_num_seqs=32)

    async def work() -> None:
        await scene.group.update_weights(1)
        process = await scene.engines.actors[1].actor.get_process_id.remote()
        os.kill(process, signal.SIGSTOP)
        found = await turns(scene.group, 12, tokens=200)
        await local.update_weights(1)
        alike(found, await turns(local, 12, tokens=200))

    scene.run(work)
    assert "crashed (no heartbeat for 2 s)" in scene.messages[0].text


def change_back(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.div_(0.9)


def test_a_prompt_that_is_too_long_is_told_as_a_sentence(
    engines: EnginePool, tmp_path: Path
) -> None:
    scene = Scene(engines, tmp_path)

    async def work() -> None:
        with pytest.raises(UserError, match="does not fit into max_model_len"):
            await scene.group.generate([5] * 5000, SamplingParams(5), "s")

    scene.run(work)


def test_a_caller_that_gives_up_frees_the_session(engines: EnginePool, tmp_path: Path) -> None:
    scene = Scene(engines, tmp_path)

    async def work() -> Completion:
        given_up, wait = False, 0.1
        while not given_up:  # repeated if the turn had already ended
            first = asyncio.create_task(
                scene.group.generate(PROMPT, SamplingParams(400, seed=1), "s")
            )
            await asyncio.sleep(wait)
            given_up, wait = first.cancel(), wait / 2
            await asyncio.gather(first, return_exceptions=True)
            scene.group.release("s")
        return await scene.group.generate(PROMPT, SamplingParams(4, seed=1), "s")

    assert len(scene.run(work).ids) <= 4
