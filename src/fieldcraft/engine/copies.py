"""Snapshot of a model, sampled from while the model itself is trained."""

from __future__ import annotations

import copy
from typing import Any

import torch


def snapshot_model(model: Any) -> Any:
    """Copy a model. Frozen parameters, such as the base weights under an adapter, are shared."""
    frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
    return copy.deepcopy(model, frozen).requires_grad_(requires_grad=False)


@torch.no_grad()
def sync_snapshot(snapshot: Any, model: Any) -> None:
    """Copy the model's current trainable weights into a snapshot."""
    for target, source in zip(snapshot.parameters(), model.parameters(), strict=True):
        if source.requires_grad:
            target.copy_(source)
