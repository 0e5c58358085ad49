"""Streamed turns of vLLM: each token is reported once and without delay."""

import asyncio
import copy
from typing import Any

import pytest

from engine_parity import PROMPT, changed, check_spans, take_over
from fieldcraft.extensions.vllm.engine import VllmEngine
from fieldcraft.sampling import Completion, SamplingParams
from vllm_rig import VllmRig
from waiting import wait_until_async

SAMPLING = SamplingParams(20, seed=100)


def followed(engine: VllmEngine, streamed: list[int], session: str = "s") -> Any:
    return engine.generate(PROMPT, SAMPLING, session, streamed.append)


def test_a_follower_hears_what_the_turn_becomes(rig: VllmRig) -> None:
    fake = rig.fake()
    engine = rig.engine(fake)
    streamed = list[int]()

    async def work() -> tuple[Completion, Completion]:
        done = await followed(engine, streamed)
        return done, await engine.generate(PROMPT, SAMPLING, "alone")

    done, alone = rig.run(work)
    assert streamed == done.ids
    assert done == alone
    check_spans([rig.model], PROMPT, done)
    requests = [r for r in fake.requests if r["sampling_params"]["max_tokens"] == 20]
    assert [r.get("stream", False) for r in requests] == [True, False]


def test_tokens_are_told_while_the_turn_is_sampled(rig: VllmRig) -> None:
    policies = [copy.deepcopy(rig.model), changed(rig.model, 1.5)]
    fake = rig.fake()
    engine = rig.engine(fake)
    streamed = list[int]()

    async def work() -> Completion:
        await engine.update_weights(0)
        fake.stalls_at = 5
        call = asyncio.create_task(followed(engine, streamed))
        await wait_until_async(lambda: len(streamed) == 5)
        fake.stalls_at = None
        take_over(rig.model, policies[1])
        await engine.update_weights(1)
        done: Completion = await call
        return done

    done = rig.run(work)
    assert done.versions == [(0, 5), (1, 15)]
    assert streamed == done.ids
    check_spans(policies, PROMPT, done)


@pytest.mark.parametrize("after", [0, 7])
def test_a_token_is_told_once_also_if_the_stream_breaks(rig: VllmRig, after: int) -> None:
    fake = rig.fake()
    engine = rig.engine(fake)
    streamed = list[int]()

    async def work() -> Completion:
        await engine.update_weights(0)
        fake.breaks_after = after
        done: Completion = await followed(engine, streamed)
        return done

    done = rig.run(work)
    assert streamed == done.ids
    assert len(streamed) == 20
    assert len([r for r in fake.requests if r.get("stream")]) == 2
    check_spans([rig.model], PROMPT, done)


def test_whoever_goes_ends_the_stream(rig: VllmRig) -> None:
    fake = rig.fake()
    engine = rig.engine(fake)
    streamed = list[int]()

    async def work() -> None:
        await engine.update_weights(0)
        fake.stalls_at = 5
        call = asyncio.create_task(followed(engine, streamed))
        await wait_until_async(lambda: len(streamed) == 5)
        assert engine.num_sessions == 1
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        await wait_until_async(lambda: fake.dropped == 1)

    rig.run(work)
    assert engine.num_sessions == 0
