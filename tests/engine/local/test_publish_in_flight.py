"""Changes of weights while turns are being sampled."""

import asyncio
import copy
from typing import Any

import pytest

from engine_parity import PROMPT, TOKENIZER, changed, check_spans, take_over
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.sampling import Completion, SamplingParams, StopReason


async def steps(engine: LocalEngine, count: int) -> None:
    """Wait until the engine has computed a number of steps."""
    target = engine.stats.forwards + count
    while engine.stats.forwards < target:
        await asyncio.sleep(0)


def test_turns_are_continued_with_the_new_weights(model: Any) -> None:
    trained = copy.deepcopy(model)
    policies = [copy.deepcopy(trained), changed(trained, 1.5), changed(trained, 0.5)]
    engine = LocalEngine(trained, TOKENIZER, max_num_seqs=4)
    prompts = [[*PROMPT, 3 + i] for i in range(6)]  # two more than rows

    async def run() -> list[Completion]:
        calls = [
            asyncio.create_task(engine.generate(ids, SamplingParams(20 + i, seed=i), f"{i}"))
            for i, ids in enumerate(prompts)
        ]
        for version in (1, 2):
            await steps(engine, 7)
            take_over(trained, policies[version])
            await engine.update_weights(version)
        return await asyncio.gather(*calls)

    done = asyncio.run(run())
    assert [completion.versions for completion in done[:4]] == [
        [(0, 7), (1, 7), (2, 6 + i)] for i in range(4)
    ]
    assert [completion.versions for completion in done[4:]] == [[(2, 24)], [(2, 25)]]
    for ids, completion in zip(prompts, done, strict=True):
        assert completion.text == TOKENIZER.decode(completion.ids)
        assert completion.stop_reason is StopReason.LENGTH
        check_spans(policies, ids, completion)


def test_an_observation_is_read_with_the_new_weights(model: Any) -> None:
    trained = copy.deepcopy(model)
    policies = [copy.deepcopy(trained), changed(trained, 1.5)]
    engine = LocalEngine(trained, TOKENIZER, max_num_seqs=4)

    async def run() -> tuple[Completion, Completion, list[int]]:
        first = await engine.generate(PROMPT, SamplingParams(9, seed=1), "a")
        take_over(trained, policies[1])
        await engine.update_weights(1)  # during the tool call
        history = [*PROMPT, *first.ids, 5, 6]
        return first, await engine.generate(history, SamplingParams(9, seed=2), "a"), history

    first, second, history = asyncio.run(run())
    assert (first.versions, second.versions) == ([(0, 9)], [(1, 9)])
    check_spans(policies, PROMPT, first)
    check_spans(policies, history, second)


def test_publishing_the_same_weights_changes_nothing(model: Any) -> None:
    def sampled(publications: int) -> Completion:
        engine = LocalEngine(model, TOKENIZER, max_num_seqs=4)

        async def run() -> Completion:
            call = asyncio.create_task(engine.generate(PROMPT, SamplingParams(24, seed=3), "a"))
            for version in range(1, publications + 1):
                await steps(engine, 5)
                await engine.update_weights(version)
            return await call

        return asyncio.run(run())

    once, often = sampled(0), sampled(3)
    assert often.ids == once.ids
    assert often.logprobs == pytest.approx(once.logprobs, abs=1e-4)
    assert often.versions == [(0, 5), (1, 5), (2, 5), (3, 9)]


def test_a_released_turn_is_not_continued(model: Any) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=4)

    async def run() -> None:
        call = asyncio.create_task(engine.generate(PROMPT, SamplingParams(24), "a"))
        await steps(engine, 3)
        engine.release("a")
        await engine.update_weights(1)
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(run())
    assert engine.stats.forwards == 3


@pytest.mark.parametrize("published", [False, True])
def test_a_turn_that_is_cancelled_as_it_ends_harms_no_other(model: Any, published: bool) -> None:
    """The future is cancelled before the caller can release the session. In between the engine may
    compute a step that ends the turn.
    """
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=4)

    async def run() -> Completion:
        calls = [
            asyncio.create_task(
                engine.generate(PROMPT, SamplingParams(length, seed=1), f"{length}")
            )
            for length in (4, 12)
        ]
        await steps(engine, 3)
        calls[0].cancel()
        if published:
            await engine.update_weights(1)
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        assert "4" not in engine._sequences.row_by_session
        return await calls[1]

    assert len(asyncio.run(run()).ids) == 12


def test_a_separate_engine_does_not_see_the_model_in_training(model: Any) -> None:
    trained = copy.deepcopy(model)
    policies = [copy.deepcopy(trained), changed(trained, 1.5)]
    engine = LocalEngine(trained, TOKENIZER, max_num_seqs=4)

    async def run() -> Completion:
        await engine.snapshot_weights()
        call = asyncio.create_task(engine.generate(PROMPT, SamplingParams(20, seed=1), "a"))
        await steps(engine, 5)
        take_over(trained, policies[1])
        trained.train()
        await steps(engine, 5)
        await engine.update_weights(1)
        return await call

    done = asyncio.run(run())
    assert trained.training
    assert done.versions == [(0, 10), (1, 10)]
    check_spans(policies, PROMPT, done)


def test_a_separate_engine_shares_what_is_frozen(model: Any) -> None:
    trained = copy.deepcopy(model).requires_grad_(requires_grad=False)
    head = trained.get_submodule("model.norm").weight.requires_grad_()
    engine = LocalEngine(trained, TOKENIZER, max_num_seqs=4)
    asyncio.run(engine.snapshot_weights())
    mine = dict(engine.model.named_parameters())
    for name, weight in trained.named_parameters():
        assert (mine[name] is weight) == (weight is not head)
