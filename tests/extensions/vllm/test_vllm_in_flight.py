"""Changes of vLLM's weights while turns are being sampled."""

import asyncio
import copy
from typing import Any

import pytest
import torch
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine_parity import PROMPT, TOKENIZER, changed, check_spans, take_over
from fieldcraft.extensions.vllm.engine import VllmEngine
from fieldcraft.sampling import Completion, SamplingParams, StopReason
from fieldcraft.types import UserError
from vllm_protocol import Fake
from vllm_rig import VllmRig
from waiting import wait_until_async

PROMPTS = [[*PROMPT, 3 + i] for i in range(8)]
SAMPLING = SamplingParams(20, seed=100)


def begin(engine: VllmEngine, ids: list[int], sampling: SamplingParams = SAMPLING) -> Any:
    """Start sampling a turn. Its session is named after the last prompt token."""
    return asyncio.create_task(engine.generate(ids, sampling, str(ids[-1])))


def turns(fake: Fake) -> list[dict[str, Any]]:
    """Return the requests to the server, except for probes."""
    return [request for request in fake.requests if request["sampling_params"]["max_tokens"] > 1]


def test_turns_are_continued_with_the_new_weights(rig: VllmRig) -> None:
    policies = [copy.deepcopy(rig.model), changed(rig.model, 1.5), changed(rig.model, 0.5)]
    fake = rig.fake()
    engine = rig.engine(fake)

    async def work() -> list[Completion]:
        await engine.update_weights(0)
        fake.stalls_at = 5
        calls = [begin(engine, ids, SamplingParams(20, seed=100)) for ids in PROMPTS]
        await wait_until_async(lambda: fake.stalled == 8)
        take_over(rig.model, policies[1])
        await engine.update_weights(1)
        await wait_until_async(lambda: fake.stalled == 16)
        fake.stalls_at = None
        take_over(rig.model, policies[2])
        await engine.update_weights(2)
        return await asyncio.gather(*calls)

    for ids, completion in zip(PROMPTS, rig.run(work), strict=True):
        assert completion.versions == [(0, 5), (1, 5), (2, 10)]
        assert (completion.text, completion.stop_reason) == (
            TOKENIZER.decode(completion.ids),
            StopReason.LENGTH,
        )
        check_spans(policies, ids, completion)
        requests = [r for r in turns(fake) if r["token_ids"][: len(ids)] == ids]
        assert [r["token_ids"] for r in requests] == [
            [*ids, *completion.ids[:k]] for k in (0, 5, 10)
        ]
        params = [r["sampling_params"] for r in requests]
        assert [(p["max_tokens"], p["seed"]) for p in params] == [(20, 100), (15, 105), (10, 110)]
        assert len({r["cache_salt"] for r in requests}) == 3


def test_a_turn_that_reaches_the_server_in_a_pause_is_asked_for_again(rig: VllmRig) -> None:
    policies = [copy.deepcopy(rig.model), changed(rig.model, 1.5)]
    fake = rig.fake()
    engine = rig.engine(fake)

    async def work() -> Completion:
        await engine.update_weights(0)
        fake.late = True
        call = begin(engine, PROMPT)
        await wait_until_async(lambda: len(turns(fake)) == 1)
        take_over(rig.model, policies[1])
        await engine.update_weights(1)
        done: Completion = await call
        return done

    done = rig.run(work)
    assert done.versions == [(1, 20)]
    check_spans(policies, PROMPT, done)
    assert len(turns(fake)) == 2


def test_turns_that_begin_during_a_change_wait_for_it(rig: VllmRig) -> None:
    policies = [copy.deepcopy(rig.model), changed(rig.model, 1.5)]
    fake = rig.fake()
    engine = rig.engine(fake)

    async def work() -> list[Completion]:
        await engine.update_weights(0)
        fake.busy = True
        take_over(rig.model, policies[1])
        change = asyncio.create_task(engine.update_weights(1))
        await wait_until_async(lambda: len(fake.loads) == 2)
        calls = [begin(engine, ids) for ids in PROMPTS]
        for _ in range(20):  # before its first request a call waits only for the lock
            await asyncio.sleep(0)
        assert not engine._pool._calls
        fake.busy = False
        await change
        return await asyncio.gather(*calls)

    for ids, one in zip(PROMPTS, rig.run(work), strict=True):
        assert one.versions == [(1, 20)]
        check_spans(policies, ids, one)
    assert len(fake.loads) == 2


def test_a_change_outlives_the_calls_that_give_up(rig: VllmRig) -> None:
    fake = rig.fake()
    engine = rig.engine(fake)

    async def work() -> Completion:
        fake.busy = True
        for _ in range(3):
            call = begin(engine, PROMPT)
            await wait_until_async(lambda: len(fake.loads) == 1)
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        call = begin(engine, PROMPT)
        fake.busy = False
        done: Completion = await call
        return done

    done = rig.run(work)
    assert done.versions == [(0, 20)]
    check_spans([rig.model], PROMPT, done)
    assert (len(fake.loads), fake.pauses) == (1, 1)


@pytest.mark.parametrize(
    ("route", "lost"), [("/pause", [(0, 5), (2, 15)]), ("/collective_rpc", None), ("/resume", None)]
)
def test_a_server_that_dies_during_a_change(
    rig: VllmRig, route: str, lost: list[tuple[int, int]] | None
) -> None:
    """The dying server's turns move to the other one, and earlier pieces of a turn are retained."""
    policies = [copy.deepcopy(rig.model), changed(rig.model, 1.5), changed(rig.model, 0.5)]
    dying, healthy = rig.fake(), rig.fake()
    engine = rig.engine(dying, healthy)

    async def work() -> list[Completion]:
        await engine.update_weights(0)
        dying.stalls_at = healthy.stalls_at = 5
        calls = [begin(engine, ids) for ids in PROMPTS]
        await wait_until_async(lambda: dying.stalled + healthy.stalled == 8)
        take_over(rig.model, policies[1])
        await engine.update_weights(1)
        await wait_until_async(lambda: dying.stalled + healthy.stalled == 16)
        dying.stalls_at = healthy.stalls_at = None
        dying.dies_at = route
        take_over(rig.model, policies[2])
        await engine.update_weights(2)
        return await asyncio.gather(*calls)

    done = rig.run(work)
    assert any("died" in event.text for event in rig.messages)
    theirs = {tuple(r["token_ids"][: len(PROMPTS[0])]) for r in turns(dying)}
    assert 0 < len(theirs) < 8
    for ids, one in zip(PROMPTS, done, strict=True):
        cut = lost if tuple(ids) in theirs else None
        assert one.versions == (cut or [(0, 5), (1, 5), (2, 10)])
        check_spans(policies, ids, one)


def test_a_turn_that_a_server_gives_up_by_itself_is_sampled_again(rig: VllmRig) -> None:
    fake = rig.fake()
    engine = rig.engine(fake)

    async def work() -> Completion:
        await engine.update_weights(0)
        fake.stalls_at = 5
        call = begin(engine, PROMPT)
        await wait_until_async(lambda: fake.stalled == 1)
        fake.stalls_at = None
        fake.pauses += 1  # as if another client had paused it
        done: Completion = await call
        return done

    done = rig.run(work)
    assert done.versions == [(0, 20)]
    check_spans([rig.model], PROMPT, done)
    assert [r["token_ids"] for r in turns(fake)] == [PROMPT, PROMPT]
    assert any("aborted a request" in event.text for event in rig.messages)


@pytest.mark.parametrize("reason", [StopReason.LENGTH, StopReason.STOP])
def test_a_turn_that_ends_just_when_the_server_pauses(rig: VllmRig, reason: StopReason) -> None:
    fake = rig.fake()
    engine = rig.engine(fake)
    answer = fake._answer

    async def ends_just_then(prompt: list[int], sampling: dict[str, Any]) -> dict[str, Any]:
        found = await answer(prompt, sampling)
        if sampling["max_tokens"] > 1:
            fake.stalled += 1
            while not fake.paused:
                await asyncio.sleep(0.01)
            found["choices"][0] |= {"finish_reason": "abort", "stop_reason": None}
        return found

    async def work() -> tuple[Completion, Completion]:
        whole = await engine.generate(PROMPT, SAMPLING, "whole")
        stop = next(c for c in whole.text if c.isalnum())
        fake._answer = ends_just_then  # type: ignore[method-assign]
        sampling = SamplingParams(20, stop=(stop,)) if reason is StopReason.STOP else SAMPLING
        count = len(turns(fake))
        call = begin(engine, PROMPT, sampling)
        await wait_until_async(lambda: fake.stalled == 1)
        await engine.update_weights(1)
        cut = await call
        assert len(turns(fake)) == count + 1
        return whole, cut

    whole, cut = rig.run(work)
    assert (cut.stop_reason, cut.versions) == (reason, [(0, len(cut.ids))])
    assert cut.ids == whole.ids[: len(cut.ids)]
    assert (len(cut.ids) == 20) == (reason is StopReason.LENGTH)


def test_a_server_that_cannot_load_is_not_left_paused(rig: VllmRig) -> None:
    fake = rig.fake()
    call = fake._call

    async def refuses(request: Request) -> Response:
        if (await request.json())["method"] == "fieldcraft_load":
            return JSONResponse({"error": {"message": "no such file"}}, status_code=500)
        return await call(request)

    fake._call = refuses  # type: ignore[method-assign]
    engine = rig.engine(fake)
    with pytest.raises(UserError, match="could not load the weights"):
        rig.run(lambda: engine.update_weights(0))
    assert fake.pauses == 1
    assert not fake.paused


def test_another_engine_does_not_interrupt(rig: VllmRig) -> None:
    fake = rig.fake()
    engine = rig.engine(fake)
    other = VllmEngine(
        rig.model, TOKENIZER, resources=rig.resources, max_num_seqs=8, urls=("unused",)
    )

    async def work() -> Completion:
        await engine.update_weights(0)
        fake.stalls_at = 5
        call = begin(engine, PROMPT)
        await wait_until_async(lambda: fake.stalled == 1)
        pauses = fake.pauses
        with pytest.raises(RuntimeError, match="two engines cannot sample"):
            await other.update_weights(0)
        assert fake.pauses == pauses
        fake.stalls_at = None
        await engine.update_weights(1)
        done: Completion = await call
        return done

    assert rig.run(work).versions == [(0, 5), (1, 15)]


@pytest.mark.parametrize("published", [True, False])
def test_between_publications_the_model_is_not_read(rig: VllmRig, published: bool) -> None:
    """A server that restarts in the middle of a turn does not read the model either."""
    policies = [copy.deepcopy(rig.model)]
    fake = rig.fake()
    engine = rig.engine(fake)

    async def work() -> list[Completion]:
        if published:
            await engine.update_weights(0)
        await engine.snapshot_weights()
        with torch.no_grad():
            for parameter in rig.model.parameters():
                parameter.fill_(torch.nan)
        first = await engine.generate(PROMPT, SAMPLING, "first")
        fake.stalls_at = 5
        call = begin(engine, PROMPT)
        await wait_until_async(lambda: fake.stalled == 1)
        fake.stalls_at = None
        fake.label, fake.model = "default", changed(policies[0], 0.5)
        fake.pauses += 1
        return [first, await call]

    for done in rig.run(work):
        assert done.versions == [(0, 20)]
        check_spans(policies, PROMPT, done)
    assert len(fake.loads) == 2
