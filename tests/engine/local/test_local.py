"""The local engine: sessions, sharing, waiting, and ends of turns."""

import asyncio
from typing import Any

import pytest

from engine_parity import PROMPT, TOKENIZER, check, gather, random_ids
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.sampling import Completion, SamplingParams, StopReason
from fieldcraft.types import UserError


def step_widths(engine: LocalEngine) -> list[int]:
    """Return a list that records the number of tokens of every forward of the engine."""
    widths: list[int] = []

    def note(_module: object, _args: object, kwargs: dict[str, Any]) -> None:
        if "plan" in kwargs:
            widths.append(kwargs["input_ids"].shape[1])

    engine.model.register_forward_pre_hook(note, with_kwargs=True)
    return widths


# ---- computed and reused tokens


def test_history_is_never_computed_again(engine: LocalEngine) -> None:
    first = gather(engine.generate(PROMPT, SamplingParams(6, 0.0), "a"))[0]
    assert engine.stats.prefilled_tokens == 20
    assert engine.stats.sampled_tokens == 6
    history = [*PROMPT, *first.ids, *random_ids(9, seed=2)]
    second = gather(engine.generate(history, SamplingParams(5, 0.0), "a"))[0]
    # The observation, and the last sampled token, which has not been computed yet.
    assert engine.stats.prefilled_tokens == 20 + 9 + 1
    assert engine.stats.forwards == 6 + 5
    check(engine, history, second)


def test_rewritten_history_keeps_the_common_prefix(engine: LocalEngine) -> None:
    gather(engine.generate(PROMPT, SamplingParams(6, 0.0), "a"))
    rewritten = [*PROMPT[:12], *random_ids(30, seed=3)]
    again = gather(engine.generate(rewritten, SamplingParams(6, 0.0), "a"))[0]
    assert engine.stats.prefilled_tokens == 20 + 30
    check(engine, rewritten, again)


def test_released_session_is_forgotten(engine: LocalEngine) -> None:
    gather(engine.generate(PROMPT, SamplingParams(6, 0.0), "a"))
    engine.release("a")
    engine.release("a")
    engine.release("never seen")
    other = random_ids(20, seed=4)
    check(engine, other, gather(engine.generate(other, SamplingParams(6, 0.0), "a"))[0])


def test_prompt_of_a_group_is_computed_once(engine: LocalEngine) -> None:
    widths = step_widths(engine)
    group = gather(*(engine.generate(PROMPT, SamplingParams(4, 0.0), str(i)) for i in range(8)))
    # One member reads the prompt; then the others read only its last token to get logits.
    assert widths == [20, 8, 8, 8, 7]
    assert engine.stats.prefilled_tokens == 20 + 7
    for completion in group:
        check(engine, PROMPT, completion)


def test_late_member_of_a_group_starts_from_a_running_one(engine: LocalEngine) -> None:
    async def late() -> Completion:
        for _ in range(5):
            await asyncio.sleep(0)
        return await engine.generate(PROMPT, SamplingParams(4, 0.0), "late")

    completions = gather(engine.generate(PROMPT, SamplingParams(20, 0.0), "early"), late())
    assert engine.stats.prefilled_tokens == 20 + 1
    for completion in completions:
        check(engine, PROMPT, completion)


def test_instructions_common_to_prompts_are_computed_once(engine: LocalEngine) -> None:
    instructions = random_ids(70, seed=1)
    prompts = [[*instructions, *random_ids(4, seed=i)] for i in range(6)]
    calls = (engine.generate(p, SamplingParams(4, 0.0), str(i)) for i, p in enumerate(prompts))
    for prompt, completion in zip(prompts, gather(*calls), strict=True):
        check(engine, prompt, completion)
    assert engine.stats.prefilled_tokens == 74 + 5 * (74 - 64)  # only whole blocks of 32 are shared
    # Six sessions share two blocks and have one or two more each.
    assert engine._sequences.num_blocks.sum() == 6 * 3
    assert (engine._sequences.blocks.ref_counts > 0).sum() == 2 + 6


def test_waiting_session_takes_no_compute(engine: LocalEngine) -> None:
    widths = step_widths(engine)
    tool = asyncio.Event()

    async def waits_for_a_tool() -> Completion:
        first = await engine.generate(PROMPT, SamplingParams(2, 0.0), "a")
        await tool.wait()
        return await engine.generate([*PROMPT, *first.ids, 7], SamplingParams(2, 0.0), "a")

    async def goes_on() -> Completion:
        completion = await engine.generate(PROMPT[5:10], SamplingParams(12, 0.0), "b")
        tool.set()
        return completion

    gather(waits_for_a_tool(), goes_on())
    # Both prompts, both decode, b decodes alone; then the observation of a.
    assert widths == [25, 2, *[1] * 10, 2, 1]


def test_tools_that_do_not_wait_rejoin_the_next_step(engine: LocalEngine) -> None:
    async def rollout(name: str, prompt: list[int]) -> Completion:
        first = await engine.generate(prompt, SamplingParams(3, 0.0), name)
        await asyncio.wait_for(asyncio.sleep(0), timeout=300)
        return await engine.generate([*prompt, *first.ids, 7], SamplingParams(3, 0.0), name)

    others = engine.generate(PROMPT, SamplingParams(6, 0.0), "one long turn")
    gather(others, *(rollout(str(i), random_ids(9, seed=10 + i)) for i in range(4)))
    assert engine.stats.forwards == 6


def test_long_prompts_are_computed_in_pieces(model) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=4, max_batched_tokens=8)
    widths = step_widths(engine)
    prompts = [PROMPT[:3], PROMPT[3:], PROMPT[1:4]]
    calls = (engine.generate(p, SamplingParams(2, 0.0), str(i)) for i, p in enumerate(prompts))
    for prompt, completion in zip(prompts, gather(*calls), strict=True):
        check(engine, prompt, completion)
    # 3 + 4 + 1, then 1 + 6 + 1, then 0 + 7 + 1, then each has one or two sampled tokens
    assert widths == [8, 8, 8, 2]


def test_memory_stays_with_the_tokens_in_use(engine: LocalEngine) -> None:
    gather(engine.generate(PROMPT, SamplingParams(4, 0.0), "a"))
    # 2 layers, keys and values, 16 blocks, 2 heads, 32 positions, 8 numbers of 4 bytes
    block = 2 * 2 * 2 * 32 * 8 * 4
    assert engine._cache.nbytes == 16 * block
    prompts = [random_ids(300, seed=0), *(random_ids(30, seed=i) for i in range(1, 16))]
    gather(*(engine.generate(p, SamplingParams(1), str(i)) for i, p in enumerate(prompts)))
    held = 1 + 10 + 15  # blocks; 16 rows of 300 tokens would have been 160
    assert 26 * block <= engine._cache.nbytes <= 1.25 * held * block + 16 * block
    asyncio.run(engine.update_weights(engine.version + 1))
    assert engine._cache.nbytes == 0


# ---- rows


def test_more_sessions_than_rows_wait_their_turn(model) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=2)
    widths = step_widths(engine)
    prompts = [random_ids(3, seed=i) for i in range(5)]
    calls = [engine.generate(p, SamplingParams(2, 0.0), str(i)) for i, p in enumerate(prompts)]
    for prompt, completion in zip(prompts, gather(*calls), strict=True):
        check(engine, prompt, completion)
    assert widths == [6, 2, 6, 2, 3, 1]
    assert engine.stats.evicted_sessions == 3


def test_longest_parked_session_loses_its_row(model) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=2)
    prompts = {name: random_ids(8, seed=i) for i, name in enumerate("abc")}
    first = {}
    for name in "abc":
        first[name] = gather(engine.generate(prompts[name], SamplingParams(2, 0.0), name))[0]
    before = engine.stats.prefilled_tokens
    assert engine.stats.evicted_sessions == 1  # a was evicted for c
    others = engine._sequences.blocks.allocate(
        len(engine._sequences.blocks._free_blocks)
    )  # and its blocks were reused
    engine._sequences.blocks.release(others)
    for name, recomputed in (("b", 2), ("a", 11)):
        history = [*prompts[name], *first[name].ids, 7]
        check(engine, history, gather(engine.generate(history, SamplingParams(2, 0.0), name))[0])
        assert engine.stats.prefilled_tokens - before == recomputed
        before = engine.stats.prefilled_tokens
    # c was evicted for a; now both return at once, in separate rows.
    histories = {name: [*prompts[name], 5, 6] for name in "ac"}
    calls = (engine.generate(ids, SamplingParams(4, 0.0), name) for name, ids in histories.items())
    for ids, completion in zip(histories.values(), gather(*calls), strict=True):
        check(engine, ids, completion)


def test_a_session_without_a_row_finds_its_blocks_if_nobody_took_them(model) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=1)
    first = gather(engine.generate(PROMPT, SamplingParams(5, 0.0), "a"))[0]
    gather(engine.generate(random_ids(8, seed=3), SamplingParams(2), "b"))
    assert engine.stats.evicted_sessions == 1
    before, history = engine.stats.prefilled_tokens, [*PROMPT, *first.ids, 7]
    check(engine, history, gather(engine.generate(history, SamplingParams(3, 0.0), "a"))[0])
    assert engine.stats.prefilled_tokens - before == 2


def test_free_rows_are_taken_before_parked_ones(model) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=2)
    for i, name in enumerate("ab"):
        gather(engine.generate(random_ids(8, seed=i), SamplingParams(2), name))
    engine.release("b")
    gather(engine.generate(random_ids(8, seed=3), SamplingParams(2), "c"))
    assert engine.stats.evicted_sessions == 0


def test_parked_sessions_are_found_where_their_blocks_were_moved(model) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=60)
    prompts = [random_ids(10 + i % 15, seed=i) for i in range(60)]
    first: dict[int, Completion] = {}
    moved: list[int] = []
    exchange = engine._cache.swap
    engine._cache.swap = lambda a, b: (moved.append(len(a)), exchange(a, b))  # type: ignore[func-returns-value]

    async def short_turn(i: int) -> Completion:
        first[i] = await engine.generate(prompts[i], SamplingParams(1, 0.0), str(i))
        return first[i]

    # The last row continues alone, so its block is swapped to the front and the first block moves.
    others = (short_turn(i) for i in range(59))
    long = gather(*others, engine.generate(prompts[59], SamplingParams(9, 0.0), "59"))[-1]
    assert moved == [1]
    check(engine, prompts[59], long)
    before = engine.stats.prefilled_tokens
    histories = [[*prompts[i], *first[i].ids, 7] for i in range(59)]
    calls = (
        engine.generate(ids, SamplingParams(3, 0.0), str(i)) for i, ids in enumerate(histories)
    )
    for ids, completion in zip(histories, gather(*calls), strict=True):
        check(engine, ids, completion)
    assert engine.stats.prefilled_tokens - before == 59 * 2


def test_a_row_that_waits_for_its_copy_is_not_copied_from(model) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=3)
    for i, name in enumerate("xdy"):
        prompt = PROMPT if name == "d" else random_ids(20, seed=50 + i)
        gather(engine.generate(prompt, SamplingParams(2), name))
    engine.release("x")
    engine.release("y")
    # Both have the prefix of d; the first gets the row before d, with the stale data of x.
    prompts = [[*PROMPT[:15], *random_ids(12, seed=i)] for i in (3, 4)]
    calls = (engine.generate(ids, SamplingParams(3, 0.0), str(i)) for i, ids in enumerate(prompts))
    for ids, completion in zip(prompts, gather(*calls), strict=True):
        check(engine, ids, completion)


def test_what_a_released_session_held_is_not_waited_for(model) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=2)
    for name, ids in (("x", PROMPT), ("y", random_ids(20, seed=2))):
        gather(engine.generate(ids, SamplingParams(1), name))
        engine.release(name)
    widths = step_widths(engine)
    gather(
        *(engine.generate(ids, SamplingParams(1), str(len(ids))) for ids in (PROMPT[:4], PROMPT))
    )
    assert widths == [4 + 1]


def test_a_prompt_waits_until_it_can_be_read_as_a_whole(model) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=3, max_batched_tokens=20)
    begun: list[int] = []

    def note(_module: object, _args: object, kwargs: dict[str, Any]) -> None:
        begun.extend(
            g.query_positions.shape[1] for g in kwargs["plan"].prefill_groups if g.has_no_context
        )

    engine.model.register_forward_pre_hook(note, with_kwargs=True)
    prompts = [random_ids(20, seed=seed) for seed in range(3)]
    gather(*(engine.generate(ids, SamplingParams(1), str(i)) for i, ids in enumerate(prompts)))
    assert begun == [20, 20, 20]


def test_a_prompt_whose_first_reader_gave_up_is_read_by_the_next(model) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=2, max_batched_tokens=8)

    async def run() -> Completion:
        first = asyncio.create_task(engine.generate(PROMPT, SamplingParams(4, 0.0), "first"))
        second = asyncio.create_task(engine.generate(PROMPT, SamplingParams(4, 0.0), "second"))
        for _ in range(3):
            await asyncio.sleep(0)
        engine.release("first")
        await asyncio.wait([first])
        return await asyncio.wait_for(second, timeout=300)

    check(engine, PROMPT, asyncio.run(run()))


def test_same_calls_make_the_same_batches(model) -> None:
    def run() -> tuple[list[int], list[list[int]]]:
        engine = LocalEngine(model, TOKENIZER, max_num_seqs=4)
        widths = step_widths(engine)
        calls = (
            engine.generate(
                random_ids(5 + i, seed=i), SamplingParams(3 + i % 4, 1.0, seed=i), str(i)
            )
            for i in range(9)
        )
        ids = [completion.ids for completion in gather(*calls)]
        return list(widths), ids

    first, second = run(), run()
    assert second[1] == first[1]
    assert second[0] == first[0]


# ---- ends of turns


def test_end_of_sequence_token_is_kept(engine: LocalEngine) -> None:
    free = gather(engine.generate(PROMPT, SamplingParams(8, 0.0), "a"))[0]
    assert free.stop_reason is StopReason.LENGTH
    cut = next(i for i in range(1, 8) if free.ids[i] not in free.ids[:i])
    engine.model.generation_config.eos_token_id = [399, free.ids[cut]]
    again = LocalEngine(engine.model, TOKENIZER, max_num_seqs=1)
    ended = gather(again.generate(PROMPT, SamplingParams(8, 0.0), "a"))[0]
    assert ended.stop_reason is StopReason.EOS
    assert ended.ids == free.ids[: cut + 1]
    assert len(ended.logprobs) == cut + 1
    assert ended.text == TOKENIZER.decode(ended.ids)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_stop_string_ends_the_turn_where_it_is_complete(engine: LocalEngine, width: int) -> None:
    free = gather(engine.generate(PROMPT, SamplingParams(40, 0.0), "free"))[0]
    for start in range(0, len(free.text) - width, 7):
        stop = free.text[start : start + width]
        if "\ufffd" in stop:
            continue
        ended = gather(
            engine.generate(PROMPT, SamplingParams(40, 0.0, stop=(stop, "zzzz")), "stop")
        )[0]
        lengths = (n for n in range(1, 41) if stop in TOKENIZER.decode(free.ids[:n]))
        assert ended.ids == free.ids[: next(lengths)]
        assert ended.stop_reason is StopReason.STOP
        assert len(ended.logprobs) == len(ended.ids)


def test_stop_string_in_the_prompt_does_not_count(engine: LocalEngine) -> None:
    free = gather(engine.generate(PROMPT, SamplingParams(10, 0.0), "a"))[0]
    stop = TOKENIZER.decode([*PROMPT[-3:], free.ids[0]])
    assert stop not in free.text
    assert gather(engine.generate(PROMPT, SamplingParams(10, 0.0, (stop,)), "b"))[0].ids == free.ids


def test_sessions_end_at_max_len(model) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=2, max_model_len=50)
    completion = gather(engine.generate(PROMPT, SamplingParams(99, 0.0), "a"))[0]
    assert completion.stop_reason is StopReason.LENGTH
    assert len(completion.ids) == 30
    check(engine, PROMPT, completion)
    with pytest.raises(UserError, match="A prompt of 50 tokens does not fit into max_model_len=50"):
        gather(engine.generate([*PROMPT, *completion.ids], SamplingParams(1), "a"))


def test_a_follower_hears_of_each_token_when_it_is_sampled(engine: LocalEngine) -> None:
    streamed: list[int] = []
    followed = engine.generate(PROMPT, SamplingParams(12, 1.0, seed=1), "a", streamed.append)
    other = engine.generate(PROMPT, SamplingParams(30, 1.0, seed=2), "b")
    done, _ = gather(followed, other)
    assert streamed == done.ids
    assert engine.num_sessions == 2
    engine.release("a")
    assert engine.num_sessions == 1


# ---- sampling


def test_seed_alone_decides_what_is_sampled(engine: LocalEngine) -> None:
    def ids(seeds: list[int]) -> dict[int, list[int]]:
        calls = (engine.generate(PROMPT, SamplingParams(12, 1.0, seed=s), str(s)) for s in seeds)
        found = dict(zip(seeds, (c.ids for c in gather(*calls)), strict=True))
        asyncio.run(engine.update_weights(engine.version + 1))
        return found

    crowd = ids([3, 1, 4, 15, 92, -6, 2**70])
    assert ids([15]) == {15: crowd[15]}
    assert ids([92, 4]) == {92: crowd[92], 4: crowd[4]}
    assert len({tuple(sampled) for sampled in crowd.values()}) == len(crowd)
