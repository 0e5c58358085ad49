"""Parity of the local engine on a CUDA device, with a higher tolerance in bfloat16."""

import asyncio
import warnings
from pathlib import Path

import pytest
import torch

from checkpoints import Architecture, tiny_tokenizer
from engine_parity import mixed_rollouts, sharp_model
from fieldcraft.engine.local.engine import LocalEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.5)])
@pytest.mark.parametrize("count", [1, 64])
def test_many_sessions_at_once(
    tmp_path: Path, architecture: Architecture, dtype: torch.dtype, tolerance: float, count: int
) -> None:
    model = sharp_model(tmp_path, architecture).to("cuda", dtype)
    engine = LocalEngine(model, tiny_tokenizer(), max_num_seqs=64)
    for rollout in mixed_rollouts(engine, count):
        rollout.check(model, tolerance)


def test_more_sessions_than_rows_and_prompts_in_pieces(tmp_path: Path) -> None:
    model = sharp_model(tmp_path, "qwen3").to("cuda")
    engine = LocalEngine(model, tiny_tokenizer(), max_num_seqs=5, max_batched_tokens=24)
    for rollout in mixed_rollouts(engine, 24):
        rollout.check(model, 1e-3)
    assert engine.stats.evicted_sessions > 0


def test_one_wait_for_the_device_per_step(tmp_path: Path) -> None:
    model = sharp_model(tmp_path, "qwen3").to("cuda")
    engine = LocalEngine(model, tiny_tokenizer(), max_num_seqs=64)
    mixed_rollouts(engine, 8)  # loads kernels and initialises libraries
    asyncio.run(engine.update_weights(engine.version + 1))
    before = engine.stats.forwards
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # which itself emits a warning
        try:
            mixed_rollouts(engine, 8)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in caught if "called a synchronizing" in str(warning.message)]
    assert 0 < len(waits) <= engine.stats.forwards - before
