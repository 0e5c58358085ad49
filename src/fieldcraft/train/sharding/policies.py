"""Policies while they are whole: before they lie in shards, and out of a checkpoint of shards."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load

from fieldcraft.config.sections import Dtype, LoraConfig
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.records.remedies import advise_repair
from fieldcraft.train.lora import LoraAdapter
from fieldcraft.train.model import load_model
from fieldcraft.train.sharding.checkpoint import unwrap_checkpoint_errors
from fieldcraft.train.sharding.checkpoint_reader import ShardReader

CPU = torch.device("cpu")


def load_policy(
    folder: Path, dtype: Dtype, lora: LoraConfig | None, seed: int = 0, adapter: Path | None = None
) -> tuple[Any, LoraAdapter | None]:
    """Load the model that a policy begins with, in the memory of the CPU, and with `lora` an
    adapter on it, new or that of a folder. All that is trained is in float32, the model below an
    adapter in `dtype`. Raises UserError for a folder that cannot be read."""
    if lora is None:
        return load_model(folder, CPU), None
    model = load_model(folder, CPU, dtype)
    return model, LoraAdapter(model, lora, seed, adapter)


def load_sharded_policy(
    checkpoint: Path, start: Path, dtype: Dtype, lora: LoraConfig | None, name: str = "policy"
) -> tuple[Any, LoraAdapter | None]:
    """Read the policy that a checkpoint of shards holds under a name, as `load_policy` returns it.
    `start` is the model that it began with. It needs no ranks.

    Raises UserError for a checkpoint that is damaged, or of another policy.
    """
    model, adapter = load_policy(start, dtype, lora)
    trained = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    advice = advise_repair(checkpoint, "choose another checkpoint of the policy")
    with (
        raise_read_errors(checkpoint, advice),
        unwrap_checkpoint_errors(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # so it is meant
        load({name: {"weights": trained}}, storage_reader=ShardReader(checkpoint), no_dist=True)
    return model, adapter
