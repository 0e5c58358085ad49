"""A copy of a model, to be sampled from while the model itself is trained."""

from __future__ import annotations

import copy
from typing import Any

import torch


def snapshot_model(model: Any) -> Any:
    """Copy a model, sharing what is not trained, such as the weights below an adapter."""
    frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
    return copy.deepcopy(model, frozen).requires_grad_(requires_grad=False)


@torch.no_grad()
def sync_snapshot(snapshot: Any, model: Any) -> None:
    """Give a copy the weights that the model has now."""
    for target, source in zip(snapshot.parameters(), model.parameters(), strict=True):
        if source.requires_grad:
            target.copy_(source)
