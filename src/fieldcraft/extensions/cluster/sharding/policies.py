"""Loading of unsharded policies: before sharding, and from a sharded checkpoint."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load

from fieldcraft.config.sections import Dtype, LoraConfig
from fieldcraft.extensions.cluster.sharding.checkpoint import ShardReader, unwrap_checkpoint_errors
from fieldcraft.records.reading import advise_repair, raise_read_errors
from fieldcraft.train.lora import LoraAdapter
from fieldcraft.train.model import load_model

CPU = torch.device("cpu")


def load_policy(
    folder: Path, dtype: Dtype, lora: LoraConfig | None, seed: int = 0, adapter: Path | None = None
) -> tuple[Any, LoraAdapter | None]:
    """Load the initial model of a policy into CPU memory and, with `lora`, an adapter on it: a new
    one, or the one in a folder. Trained weights are in float32, the base model of an adapter in
    `dtype`. Raises UserError if a folder cannot be read."""
    if lora is None:
        return load_model(folder, CPU), None
    model = load_model(folder, CPU, dtype)
    return model, LoraAdapter(model, lora, seed, adapter)


def load_sharded_policy(
    checkpoint: Path, start: Path, dtype: Dtype, lora: LoraConfig | None, name: str = "policy"
) -> tuple[Any, LoraAdapter | None]:
    """Read the policy with a name from a sharded checkpoint, in the form that `load_policy`
    returns. `start` is its initial model. No ranks are needed.

    Raises UserError if the checkpoint is damaged or belongs to another policy.
    """
    model, adapter = load_policy(start, dtype, lora)
    trained = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    advice = advise_repair(checkpoint, "choose another checkpoint of the policy")
    with (
        raise_read_errors(checkpoint, advice),
        unwrap_checkpoint_errors(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # intended
        load({name: {"weights": trained}}, storage_reader=ShardReader(checkpoint), no_dist=True)
    return model, adapter
