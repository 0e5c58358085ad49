"""Equality of the local engine and plain forwards of the same model."""

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from checkpoints import tiny_tokenizer
from engine_parity import Rollout, mixed_rollouts, random_ids, sharp_model
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.sampling import SamplingParams


@pytest.fixture(scope="module", params=["qwen2", "qwen3", "llama"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    return sharp_model(tmp_path_factory.mktemp("model"), request.param)


@pytest.mark.parametrize("count", [1, 7, 64])
def test_many_sessions_at_once(model: PreTrainedModel, count: int) -> None:
    engine = LocalEngine(model, tiny_tokenizer(), max_num_seqs=64)
    rollouts = mixed_rollouts(engine, count)
    assert len(rollouts) == count
    for rollout in rollouts:
        rollout.check(model, 1e-3)


def test_more_sessions_than_rows_and_prompts_in_pieces(model: PreTrainedModel) -> None:
    engine = LocalEngine(model, tiny_tokenizer(), max_num_seqs=5, max_batched_tokens=24)
    for rollout in mixed_rollouts(engine, 24):
        rollout.check(model, 1e-3)
    assert engine.stats.evicted_sessions > 0


def test_greedy_ids_are_those_of_generate(model: PreTrainedModel) -> None:
    engine = LocalEngine(model, tiny_tokenizer(), max_num_seqs=8)
    prompts = [random_ids(n, seed=n) for n in (1, 5, 40, 17, 80)]

    async def run() -> list[list[int]]:
        calls = (engine.generate(p, SamplingParams(30, 0.0), str(i)) for i, p in enumerate(prompts))
        return [completion.ids for completion in await asyncio.gather(*calls)]

    for prompt, ids in zip(prompts, asyncio.run(run()), strict=True):
        whole = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=30,
            do_sample=False,
        )
        assert whole[0, len(prompt) :].tolist() == ids


def test_half_precision_decodes_too(tmp_path: Path) -> None:
    model = sharp_model(tmp_path, "qwen3").to(torch.bfloat16)
    engine = LocalEngine(model, tiny_tokenizer(), max_num_seqs=8)
    rollout = Rollout("a", temperature=1.0)
    asyncio.run(rollout.run(engine, random_ids(20, seed=1), [8, 8]))
    rollout.check(model, 0.5)
