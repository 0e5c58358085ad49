"""Checkpoints of shards as transformers and PEFT read them. It needs no ranks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load

from fieldcraft.records.reading import reading
from fieldcraft.records.remedies import remedy
from fieldcraft.train.lora import Adapter
from fieldcraft.train.model import load_model, load_tokenizer
from fieldcraft.train.saving import save_model
from fieldcraft.train.sharding.checkpoint import causes
from fieldcraft.train.sharding.specs import PolicySpec

CPU = torch.device("cpu")


def load_policy(spec: PolicySpec) -> tuple[Any, Adapter | None]:
    """The model that a policy begins with, whole and in the memory of the CPU, with its adapter if
    it has one. Raises UserError for a folder that cannot be read."""
    if spec.lora is None:
        return load_model(spec.folder, CPU), None
    model = load_model(spec.folder, CPU, spec.dtype)
    return model, Adapter(model, spec.lora, spec.seed, spec.adapter)


def export(folder: Path, spec: PolicySpec, target: Path, name: str = "policy") -> None:
    """Write the policy of a checkpoint: the model with its tokenizer, or the adapter alone.

    Raises UserError for a checkpoint that is damaged, or of another policy.
    """
    model, adapter = load_policy(spec)
    trained = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    advice = remedy(folder, "choose another checkpoint of the policy")
    with reading(folder, advice), causes(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # so it is meant
        load({name: {"weights": trained}}, checkpoint_id=folder, no_dist=True)
    if adapter is None:
        save_model(target, model, load_tokenizer(spec.folder))
    else:
        adapter.save(target)
