"""Checkpoints: weights or adapter, optimiser, schedule and random state.

They are written under a new name and renamed when complete; then others are deleted, but for one
that a watch wants to keep. So there is always a whole one, and the highest step is the newest.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fieldcraft.records.files import atomic_folder, writing
from fieldcraft.records.reading import reading
from fieldcraft.records.remedies import remedy
from fieldcraft.train.model import load_model
from fieldcraft.train.trainer import Trainer

STATE = "trainer.pt"


def save_checkpoint(folder: Path, trainer: Trainer, tokenizer: Any, extra: dict[str, Any]) -> Path:
    """Save the trainer after `trainer.done` steps. `extra` holds plain values (reward state).

    The data position needs no field of its own: what a step trains on follows from its number.
    """
    target = checkpoint_folder(folder, trainer.done)
    if not target.exists():
        with atomic_folder(target) as draft, writing(target):
            if trainer.adapter is None:
                save_weights(draft, trainer, tokenizer)
            else:
                trainer.adapter.save(draft)
            torch.save({"trainer": trainer.state_dict(), "extra": extra}, draft / STATE)
    return target


def saved_steps(folder: Path) -> list[int]:
    """How many steps each checkpoint has behind it, ascending: the last one is the newest."""
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


def checkpoint_folder(folder: Path, done: int) -> Path:
    """Where the checkpoint after `done` steps of the stage in `folder` is."""
    return folder / f"step-{done:06d}"


def drop_checkpoints(folder: Path, keep: int | None) -> None:
    """Delete all checkpoints but the newest and the one after `keep` steps."""
    for done in saved_steps(folder)[:-1]:
        if done != keep:
            shutil.rmtree(checkpoint_folder(folder, done))


def save_weights(folder: Path, trainer: Trainer, tokenizer: Any) -> None:
    """The model with its masters, and the tokenizer, as transformers loads them."""
    save_model(folder, trainer.model, tokenizer, trainer.weights.state_of(trainer.model))


def save_model(
    folder: Path, model: Any, tokenizer: Any, state: Mapping[str, Tensor] | None = None
) -> None:
    """Model and tokenizer as transformers loads them; `state` holds other weights than the model's
    own."""
    with writing(folder):
        model.save_pretrained(folder, state_dict=state)
        tokenizer.save_pretrained(folder)


def restore_checkpoint(folder: Path, trainer: Trainer) -> dict[str, Any]:
    """Load the newest checkpoint into the trainer and return its `extra`; {} if there is none.

    The weights are read by transformers, as they were written: it may have renamed them, cut them
    into several files, or split the experts of a layer into tensors of their own.

    Raises UserError if a file of the checkpoint is damaged.
    """
    found = saved_steps(folder)
    if not found:
        return {}
    newest = checkpoint_folder(folder, found[-1])
    if trainer.adapter is None:
        saved = load_model(newest, torch.device("cpu"))
        trainer.weights.load(trainer.model, saved.state_dict())
    else:
        trainer.adapter.load(newest)
    with reading(newest / STATE, remedy(newest, f"delete the folder {newest}")):
        state = torch.load(newest / STATE, map_location=trainer.device, weights_only=True)
        trainer.load_state_dict(state["trainer"])
        extra: dict[str, Any] = state["extra"]
    return extra
