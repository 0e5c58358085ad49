"""Comparison of a model in ranks with plain forward passes, when every rank holds its shards."""

from pathlib import Path
from typing import Any

import pytest
import torch
from sharded_parts import SHAPE
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    NemotronConfig,
    NemotronForCausalLM,
)

from fieldcraft.config.sections import Optim
from fieldcraft.extensions.cluster.sharding.specs import PolicySpec
from fieldcraft.extensions.cluster.sharding.trainer import ShardedTrainer
from fieldcraft.types import UserError
from rank_processes import Pool

SIZES: dict[str, Any] = SHAPE | {"head_dim": 6}


@pytest.mark.long
@pytest.mark.parametrize("context", [1, 2])
def test_a_model_that_packed_batches_change_is_refused(
    pool: Pool, tmp_path: Path, context: int
) -> None:
    with torch.random.fork_rng(devices=[]):
        NemotronForCausalLM(NemotronConfig(**SIZES)).save_pretrained(tmp_path / "model")
    spec = PolicySpec(folder=tmp_path / "model", optim=Optim(lr=1e-3), steps=1, dtype="float32")
    with (
        pool.ranks(tmp_path, 2 // context, context) as ranks,
        pytest.raises(
            UserError,
            match="its layers do not pass the sequence boundaries to the attention function",
        ),
    ):
        ShardedTrainer(ranks, spec)


@pytest.mark.long
@pytest.mark.parametrize("context", [1, 2])
def test_latent_attention_is_equal(pool: Pool, tmp_path: Path, context: int) -> None:
    """Latent attention has keys that are wider than its values."""
    heads = {"num_key_value_heads": 4, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8}
    latent = {"kv_lora_rank": 8, "q_lora_rank": 16, "v_head_dim": 6, "head_dim": 4}
    config = DeepseekV3Config(**SIZES | heads | latent, first_k_dense_replace=2)
    with torch.random.fork_rng(devices=[]):
        DeepseekV3ForCausalLM(config).save_pretrained(tmp_path / "model")
    spec = PolicySpec(folder=tmp_path / "model", optim=Optim(lr=1e-3), steps=1, dtype="float32")
    with pool.ranks(tmp_path, 2 // context, context) as ranks:
        ShardedTrainer(ranks, spec)
