"""Concurrent sessions: each gets the same result as forwards without a cache."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from engine_parity import TOKENIZER, plain_logprobs, random_ids, sharp_model
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.local.sampling import draw_uniforms
from fieldcraft.sampling import Completion, SamplingParams

ROUNDING = 1e-3  # tolerance of probabilities and log-probabilities, with weights as large as these


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    return sharp_model(Path(tmp_path_factory.mktemp("model")), "qwen2")


def check_alone(model: PreTrainedModel, prompt: list[int], seed: int, got: Completion) -> None:
    """Check a completion against the plain probabilities.

    Each token is the one at its random number, up to rounding of a batch, and its log-probability
    is the plain one.
    """
    count = len(got.ids)
    logprobs = plain_logprobs(model, prompt, got.ids, 1.0).double()
    draws = draw_uniforms(np.full(count, seed, np.uint64), len(prompt) + np.arange(count))
    draws = torch.from_numpy(draws).double()
    index = torch.tensor(got.ids)[:, None]
    chosen = logprobs.gather(1, index)[:, 0]
    above = logprobs.exp().cumsum(-1).gather(1, index)[:, 0]
    below = above - chosen.exp()
    assert torch.all(below - ROUNDING <= draws), (below - draws).max()
    assert torch.all(draws <= above + ROUNDING), (draws - above).max()
    assert got.logprobs == pytest.approx(chosen.tolist(), abs=ROUNDING)


turn = st.tuples(
    st.integers(0, 3),  # source whose text it continues
    st.integers(0, 110),  # number of source tokens to reuse
    st.integers(1, 50),  # new tokens
    st.integers(1, 20),  # sampled tokens
    st.integers(0, 12),  # steps before it
    st.booleans(),  # release the session afterwards
)
sessions = st.lists(st.lists(turn, max_size=4), min_size=2, max_size=6)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sessions, st.sampled_from([2, 4, 8]), st.sampled_from([24, 8192]))
def test_company_changes_nothing(model, plans, rows: int, step_tokens: int) -> None:
    engine = LocalEngine(model, TOKENIZER, max_num_seqs=rows, max_batched_tokens=step_tokens)
    texts = [random_ids(40 + 32 * i, seed=i) for i in range(4)]
    done: list[tuple[list[int], int, Completion]] = []

    async def session(name: int, turns: list[tuple[int, int, int, int, int, bool]]) -> None:
        for i, (source, reused, new, length, hops, over) in enumerate(turns):
            for _ in range(hops):
                await asyncio.sleep(0)
            seed = 100 * name + i
            prompt = [*texts[source][:reused], *random_ids(new, seed % 3)]
            completion = await engine.generate(prompt, SamplingParams(length, seed=seed), str(name))
            done.append((prompt, seed, completion))
            texts[source] = [*prompt, *completion.ids]
            if over:
                engine.release(str(name))

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for name, turns in enumerate(plans):
                group.create_task(session(name, turns))

    asyncio.run(run())
    for prompt, seed, completion in done:
        check_alone(model, prompt, seed, completion)
    for name in range(len(plans)):
        engine.release(str(name))
    blocks = engine._sequences.blocks
    assert set(blocks._free_blocks) == set(range(blocks.num_blocks))
    assert engine._cache.num_blocks == blocks.num_blocks
