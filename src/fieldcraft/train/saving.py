"""Saving and loading of models and checkpoints, in the formats of transformers and torch.

A checkpoint contains weights or adapter, optimizer, schedule and random state. Checkpoints are
written under a temporary name and renamed when complete; then older ones are deleted, except those
retained by the recipe or a collapse detector. So there is always a complete one, and the highest
step is the newest.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fieldcraft.engine.model_files import write_model, write_tokenizer
from fieldcraft.records.paths import CHECKPOINT_GLOB
from fieldcraft.records.reading import advise_renaming, advise_repair, raise_read_errors
from fieldcraft.train.model import to_dtype_name
from fieldcraft.train.parity import probe_model, require_export_parity
from fieldcraft.train.protocols import ProbeResult, TrainablePolicy

STATE_FILE = "trainer.pt"  # trainer state of a checkpoint, next to its weights


def save_model(
    folder: Path,
    model: Any,
    tokenizer: Any,
    state: Mapping[str, Tensor] | None = None,
    probe: ProbeResult | None = None,
) -> None:
    """Write model and tokenizer in transformers format, and verify them by reading them back.

    Args:
        folder: target folder; a draft, because it is incomplete if this raises.
        model: transformers causal LM.
        tokenizer: tokenizer of the model.
        state: unrounded weights to write in place of the model's weights.
        probe: probe result of the policy that has these weights; None: of the model itself.

    Raises UserError if they cannot be written, or if the model that is read back differs.
    """
    probe = probe or probe_model(model)
    write_model(folder, model, state)
    write_tokenizer(folder, tokenizer)
    require_export_parity(folder, probe, to_dtype_name(model.dtype))


@contextmanager
def load_state(folder: Path, device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield the trainer state of a checkpoint, to be restored inside the block. Raises UserError if
    it is damaged."""
    with raise_read_errors(folder / STATE_FILE, advise_repair(folder, advise_renaming(folder))):
        yield torch.load(folder / STATE_FILE, map_location=device, weights_only=True)


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


def restore_checkpoint(folder: Path, trainer: TrainablePolicy) -> dict[str, Any]:
    """Load the newest checkpoint into the trainer and return its `extra`; {} if no checkpoint
    exists.

    Raises UserError if a file of the checkpoint is damaged.
    """
    steps = list_checkpoint_steps(folder)
    return trainer.load(get_checkpoint_folder(folder, steps[-1])) if steps else {}


def get_checkpoint_folder(folder: Path, done: int) -> Path:
    """Return the folder of the checkpoint after `done` steps of the stage in `folder`."""
    return folder / f"step-{done:06d}"


def list_checkpoint_steps(folder: Path) -> list[int]:
    """Return the number of completed steps of each checkpoint, ascending: the last one is the
    newest."""
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob(CHECKPOINT_GLOB))


def prune_checkpoints(
    folder: Path, keep: int | Literal["all"], keep_step: int | None = None
) -> None:
    """Delete all checkpoints except the `keep` newest ones and that of `keep_step` completed
    steps."""
    steps = list_checkpoint_steps(folder)
    old = [] if keep == "all" else steps[: max(0, len(steps) - keep)]
    for done in old:
        if done != keep_step:
            shutil.rmtree(get_checkpoint_folder(folder, done))
