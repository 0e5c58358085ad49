"""Checkpoints: what is trained (a model in Hugging Face format or an adapter in PEFT's), optimiser,
schedule, random state.

They are written under a new name and renamed when complete; then older ones are deleted. So there
is always a whole one, and the highest step is the newest.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model as load_weights

from fieldcraft.store import atomic_folder
from fieldcraft.train.trainer import Trainer

STATE = "trainer.pt"


def save_checkpoint(folder: Path, trainer: Trainer, tokenizer: Any, extra: dict[str, Any]) -> Path:
    """Save the trainer after `trainer.done` steps. `extra` holds plain values (reward state).

    The data position needs no field of its own: what a step trains on follows from its number.
    """
    target = folder / f"step-{trainer.done:06d}"
    if not target.exists():
        with atomic_folder(target) as draft:
            if trainer.adapter is None:
                save_weights(draft, trainer.model, tokenizer)
            else:
                trainer.adapter.save(draft)
            torch.save({"trainer": trainer.state_dict(), "extra": extra}, draft / STATE)
    for path in folder.glob("step-*"):
        if path != target:
            shutil.rmtree(path)
    return target


def save_weights(folder: Path, model: Any, tokenizer: Any) -> None:
    """Model and tokenizer as transformers loads them."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def restore_checkpoint(folder: Path, trainer: Trainer) -> dict[str, Any]:
    """Load the newest checkpoint into the trainer and return its `extra`; {} if there is none."""
    found = sorted(folder.glob("step-*"))
    if not found:
        return {}
    if trainer.adapter is None:
        load_weights(trainer.model, found[-1] / "model.safetensors", strict=False)
    else:
        trainer.adapter.load(found[-1])
    state = torch.load(found[-1] / STATE, map_location=trainer.device, weights_only=True)
    trainer.load_state_dict(state["trainer"])
    extra: dict[str, Any] = state["extra"]
    return extra
