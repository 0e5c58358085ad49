"""Ranks refuse what one process refuses: each of them, when all of them have their parts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from sharded_parts import SHAPE
from transformers import NemotronConfig, NemotronForCausalLM

from fieldcraft.config.sections import Optim
from fieldcraft.train.sharding.specs import PolicySpec
from fieldcraft.train.sharding.trainer import ShardedTrainer
from fieldcraft.types import UserError
from rank_processes import Pool


@pytest.mark.parametrize("context", [1, 2])
def test_a_model_that_packed_batches_change_is_refused(
    pool: Pool, tmp_path: Path, context: int
) -> None:
    sizes: dict[str, Any] = SHAPE | {"head_dim": 6}
    with torch.random.fork_rng(devices=[]):
        NemotronForCausalLM(NemotronConfig(**sizes)).save_pretrained(tmp_path / "model")
    spec = PolicySpec(folder=tmp_path / "model", optim=Optim(lr=1e-3), steps=1, dtype="float32")
    with (
        pool.ranks(tmp_path, 2 // context, context) as ranks,
        pytest.raises(UserError, match="its layers do not pass on which text a token belongs to"),
    ):
        ShardedTrainer(ranks, spec)
