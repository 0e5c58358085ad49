"""A copy of a model, to be sampled from while the model itself is trained."""

from __future__ import annotations

import copy
from typing import Any

import torch


def copy_of(model: Any) -> Any:
    """Copy a model, sharing what is not trained, such as the weights below an adapter."""
    frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
    return copy.deepcopy(model, frozen).requires_grad_(requires_grad=False)


@torch.no_grad()
def refresh(copied: Any, model: Any) -> None:
    """Give a copy the weights that the model has now."""
    for mine, theirs in zip(copied.parameters(), model.parameters(), strict=True):
        if theirs.requires_grad:
            mine.copy_(theirs)
