"""Checkpoints: weights or adapter, optimizer, schedule and random state.

They are written under a temporary name and renamed when complete; then older ones are deleted,
except those retained by the recipe or a collapse detector. So there is always a complete one, and
the highest step is the newest.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from fieldcraft.records.paths import CHECKPOINT_GLOB
from fieldcraft.train.protocols import TrainablePolicy


def save_checkpoint(
    folder: Path, trainer: TrainablePolicy, tokenizer: Any, extra: dict[str, Any]
) -> Path:
    """Save the trainer after `trainer.done` steps. `extra` contains plain values (reward state).

    The data position is not stored: the data of a step are determined by its number.
    """
    target = get_checkpoint_folder(folder, trainer.done)
    if not target.exists():
        trainer.save(target, tokenizer, extra)
    return target


def list_checkpoint_steps(folder: Path) -> list[int]:
    """Return the number of completed steps of each checkpoint, ascending: the last one is the
    newest."""
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob(CHECKPOINT_GLOB))


def get_checkpoint_folder(folder: Path, done: int) -> Path:
    """Return the folder of the checkpoint after `done` steps of the stage in `folder`."""
    return folder / f"step-{done:06d}"


def list_newest_steps(folder: Path, keep: int | Literal["all"]) -> list[int]:
    """Return the numbers of completed steps of the `keep` newest checkpoints, ascending."""
    steps = list_checkpoint_steps(folder)
    return steps if keep == "all" else steps[max(0, len(steps) - keep) :]


def prune_checkpoints(folder: Path, keep: Collection[int]) -> None:
    """Delete all checkpoints except those whose number of completed steps is in `keep`."""
    for done in list_checkpoint_steps(folder):
        if done not in keep:
            shutil.rmtree(get_checkpoint_folder(folder, done))


def restore_checkpoint(folder: Path, trainer: TrainablePolicy) -> dict[str, Any]:
    """Load the newest checkpoint into the trainer and return its `extra`; {} if no checkpoint
    exists.

    Raises UserError if a file of the checkpoint is damaged.
    """
    steps = list_checkpoint_steps(folder)
    return trainer.load(get_checkpoint_folder(folder, steps[-1])) if steps else {}
