"""Failures of the local engine: changed weights, ended event loops, failed and cancelled calls."""

import asyncio

import numpy as np
import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM

from engine_parity import PROMPT, TOKENIZER, check, gather, random_ids
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.types import UserError


def test_new_weights_drop_the_cache(engine: LocalEngine) -> None:
    first = gather(engine.generate(PROMPT, SamplingParams(4, 0.0), "a"))[0]
    with torch.no_grad():
        engine.model.get_input_embeddings().weight.mul_(-1)
    asyncio.run(engine.update_weights(1))
    history = [*PROMPT, *first.ids, 7]
    second = gather(engine.generate(history, SamplingParams(4, 0.0), "a"))[0]
    assert (first.versions, second.versions) == ([(0, 4)], [(1, 4)])
    assert engine.stats.prefilled_tokens == 20 + 25
    check(engine, history, second)


def test_training_finds_its_own_attention_again(engine: LocalEngine) -> None:
    before = engine.model.config._attn_implementation
    gather(engine.generate(PROMPT, SamplingParams(2), "a"))
    assert engine.model.config._attn_implementation == before
    logits = engine.model(torch.tensor([PROMPT])).logits
    logits.sum().backward()
    assert engine.model.get_input_embeddings().weight.grad is not None


def test_one_call_of_a_session_at_a_time(engine: LocalEngine) -> None:
    async def run() -> None:
        calls = [engine.generate(PROMPT, SamplingParams(3), "a") for _ in range(2)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[0], Completion)
        assert isinstance(results[1], RuntimeError)

    asyncio.run(run())


def test_an_exception_of_a_follower_ends_its_own_call(engine: LocalEngine) -> None:
    def fail(token: int) -> None:
        raise LookupError(token)

    async def run() -> tuple[Completion, LookupError]:
        calls = (
            engine.generate(PROMPT, SamplingParams(12, 0.0), "a"),
            engine.generate(PROMPT, SamplingParams(12, 0.0), "b", fail),
        )
        return await asyncio.gather(*calls, return_exceptions=True)  # type: ignore[return-value]

    done, error = asyncio.run(run())
    assert isinstance(error, LookupError)
    assert engine.num_sessions == 1
    check(engine, PROMPT, done)


@pytest.mark.parametrize(
    ("ids", "sampling"),
    [
        ([400], SamplingParams(1)),
        ([-1], SamplingParams(1)),
        ([5], SamplingParams(0)),
        ([5], SamplingParams(1, temperature=-1.0)),
        ([5], SamplingParams(1, stop=("",))),
    ],
)
def test_wrong_calls_fail_alone(
    engine: LocalEngine, ids: list[int], sampling: SamplingParams
) -> None:
    async def run() -> None:
        good = asyncio.create_task(engine.generate(PROMPT, SamplingParams(3), "good"))
        with pytest.raises(ValueError):  # noqa: PT011
            await engine.generate(ids, sampling, "bad")
        assert len((await good).ids) == 3

    asyncio.run(run())


def test_logits_that_are_not_finite_fail_their_session_only(model) -> None:
    with torch.no_grad():
        model.get_input_embeddings().weight[5] = torch.nan
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=2)
    good = [i for i in PROMPT if i != 5]

    async def run() -> list[Completion | BaseException]:
        calls = (
            engine.generate([*good[:3], 5, 6], SamplingParams(4, 0.0), "poisoned"),
            engine.generate(good, SamplingParams(4, 0.0), "sound"),
        )
        return await asyncio.gather(*calls, return_exceptions=True)

    poisoned, sound = asyncio.run(run())
    assert isinstance(poisoned, FloatingPointError)
    assert "position 5 of session 'poisoned'" in str(poisoned)
    check(engine, good, sound)
    # The next session in its row does not see stale data, and no session copies from it.
    engine.release("sound")
    for name, ids in (("poisoned", [*good[:3], good[9]]), ("other", [*good[:3], *good[:10]])):
        check(engine, ids, gather(engine.generate(ids, SamplingParams(4, 0.0), name))[0])


def test_what_is_not_finite_is_overwritten_before_others_get_it(model) -> None:
    """Two sessions that fail share a block."""
    with torch.no_grad():
        model.get_input_embeddings().weight[5] = torch.nan
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=3, max_batched_tokens=33)
    good = [i for i in PROMPT if i != 5]
    bad = [*good, 5, *good]  # its first block is complete before the row samples

    async def run() -> None:
        calls = (engine.generate([*bad, 9, 9], SamplingParams(2), name) for name in "ab")
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, FloatingPointError)

    asyncio.run(run())
    assert engine._sequences.blocks.match_prefix(np.array(bad))[1] == 0
    gather(engine.generate(good, SamplingParams(1), "takes the blocks"))
    assert all(torch.isfinite(tensor).all() for tensor in engine._cache._tensors())


@pytest.mark.parametrize("failure", ["logits", "callback"])
@pytest.mark.parametrize("others", [0, 1])
def test_a_prompt_is_sound_after_a_session_that_shared_it_has_failed(
    model, failure: str, others: int
) -> None:
    """The session without a failure indexes the shared blocks again when its turn ends."""
    with torch.no_grad():
        model.get_input_embeddings().weight[5] = torch.nan
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=2)
    shared = [i for i in random_ids(80, seed=7) if i != 5][:70]
    prompts = [*shared, 6], [*shared, 5 if failure == "logits" else 7]

    def fail(_token: int) -> None:
        raise LookupError

    async def run() -> list[Completion | BaseException]:
        calls = (
            engine.generate(prompts[0], SamplingParams(6, 0.0), "sound"),
            engine.generate(prompts[1], SamplingParams(6, 0.0), "fails", fail),
        )
        return await asyncio.gather(*calls, return_exceptions=True)

    sound, failed = asyncio.run(run())
    assert isinstance(failed, FloatingPointError if failure == "logits" else LookupError)
    check(engine, prompts[0], sound)
    engine.release("sound")
    for seed in range(others):
        ids = [i for i in random_ids(40, seed) if i != 5]
        check(engine, ids, gather(engine.generate(ids, SamplingParams(2, 0.0), "between"))[0])
    later = [*shared, 8, 9]
    fresh = LocalEngine(model, TOKENIZER, max_num_seqs=2)
    results = [
        gather(e.generate(later, SamplingParams(6, 0.0), "later"))[0] for e in (engine, fresh)
    ]
    assert results[0].ids == results[1].ids
    assert results[0].logprobs == pytest.approx(results[1].logprobs, abs=1e-3)


def test_a_callback_never_gets_a_token_of_logits_that_are_not_finite(model) -> None:
    with torch.no_grad():
        model.get_input_embeddings().weight[5] = torch.nan
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=2)
    bad, tokens = [*PROMPT, 5], list[int]()
    with pytest.raises(FloatingPointError):
        gather(engine.generate(bad, SamplingParams(2), "a", tokens.append))
    assert tokens == []


def test_blocks_of_a_cancelled_call_with_logits_that_are_not_finite_are_not_reused(model) -> None:
    """The call is cancelled during the forward pass."""
    with torch.no_grad():
        model.get_input_embeddings().weight[5] = torch.nan
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=2)
    bad = [*(i for i in PROMPT if i != 5), 5, 6]

    async def run() -> None:
        call = asyncio.create_task(engine.generate(bad, SamplingParams(2), "a"))
        hook = engine.model.register_forward_pre_hook(lambda *_: call.cancel() and None)
        with pytest.raises(asyncio.CancelledError):
            await call
        hook.remove()

    asyncio.run(run())
    assert engine._sequences.blocks.match_prefix(np.array(bad))[1] == 0


@pytest.mark.parametrize(
    ("raised", "seen", "words"),
    [
        (ZeroDivisionError("broken"), ZeroDivisionError, "broken"),
        (torch.OutOfMemoryError("full"), UserError, "a cache of 512 tokens .* lower max_num_seqs"),
    ],
)
def test_failed_step_reaches_every_caller(
    model, raised: Exception, seen: type[Exception], words: str
) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=2)  # the third call is still queued

    def fail(*_: object) -> None:
        raise raised

    async def run(names: str) -> list[Completion | BaseException]:
        calls = (engine.generate(PROMPT, SamplingParams(4, 0.0), name) for name in names)
        return await asyncio.gather(*calls, return_exceptions=True)

    hook = engine.model.register_forward_pre_hook(fail)
    for error in asyncio.run(run("abc")):
        with pytest.raises(seen, match=words):
            raise error
    hook.remove()
    for completion in asyncio.run(run("def")):
        check(engine, PROMPT, completion)


@pytest.mark.parametrize("give_up", ["cancel", "release"])
def test_given_up_calls_free_their_rows(model, give_up: str) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=1)

    async def run() -> Completion:
        running = asyncio.create_task(engine.generate(PROMPT, SamplingParams(1000), "running"))
        queued = asyncio.create_task(engine.generate(PROMPT, SamplingParams(1000), "queued"))
        for _ in range(4):
            await asyncio.sleep(0)
        for task, session in ((running, "running"), (queued, "queued")):
            if give_up == "cancel":
                task.cancel()
            else:
                engine.release(session)
        for task in (running, queued):
            with pytest.raises(asyncio.CancelledError):
                await task
        return await engine.generate(PROMPT, SamplingParams(3, 0.0), "next")

    check(engine, PROMPT, asyncio.run(run()))
    assert engine.stats.evicted_sessions == 0


def test_nobody_waits_for_a_worker_that_was_cancelled(engine: LocalEngine) -> None:
    async def run() -> None:
        call = asyncio.create_task(engine.generate(PROMPT, SamplingParams(1000), "a"))
        await asyncio.sleep(0)
        next(task for task in asyncio.all_tasks() if task.get_name() == "engine").cancel()
        await asyncio.wait([call], timeout=300)
        assert call.cancelled()

    asyncio.run(run())


def test_an_event_loop_may_end_at_any_time(engine: LocalEngine) -> None:
    async def leave() -> None:
        task = asyncio.create_task(engine.generate(PROMPT, SamplingParams(1000), "left"))
        for _ in range(4):
            await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(leave())
    check(engine, PROMPT, gather(engine.generate(PROMPT, SamplingParams(4, 0.0), "left"))[0])


# ---- unsupported models


def tiny_bloom() -> BloomForCausalLM:
    return BloomForCausalLM(BloomConfig(vocab_size=400, hidden_size=16, n_layer=1, n_head=2))


def test_other_kinds_of_attention_are_refused() -> None:
    def use() -> None:
        engine = LocalEngine(tiny_bloom(), TOKENIZER, max_num_seqs=1, max_model_len=64)
        gather(engine.generate(PROMPT, SamplingParams(2), "a"))

    with pytest.raises(UserError, match="its attention is fixed"):
        use()
