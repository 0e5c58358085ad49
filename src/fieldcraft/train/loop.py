"""A stage of training: steps, a metrics row each, checkpoints, and going on after a kill."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fieldcraft.config.stages import Stage
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.terminal import StageProgress
from fieldcraft.train.checkpoint import (
    checkpoint_folder,
    drop_checkpoints,
    restore_checkpoint,
    save_checkpoint,
    saved_steps,
)
from fieldcraft.train.memory import trim_memory
from fieldcraft.train.trainer import Trainer
from fieldcraft.train.watch import Watch
from fieldcraft.types import UserError

Row = dict[str, Any]

TRIM_EVERY = 20  # steps: as often as costs no time that can be measured


def run_steps(
    *,
    trainer: Trainer,
    tokenizer: Any,
    stage: Stage,
    folder: Path,
    step: Callable[[int], Row],
    progress: StageProgress,
    state: Callable[[], Row] = dict,
    load_state: Callable[[Row], None] = lambda _: None,
    watch: Watch | None = None,
) -> list[Row]:
    """Run `step(i)` for every step that no checkpoint in `folder` has behind it.

    A step is a function of its number, the weights and `state` alone, so a run that was killed and
    goes on ends with the numbers of one that was not. Returns all rows, earlier ones included.

    Raises UserError if `watch` finds that the run has collapsed; the healthiest of its checkpoints
    is then still there. So does every further attempt, without a step.
    """
    log = MetricsLog(folder / "metrics.jsonl")
    _stop_if_collapsed(watch, log.rows(), folder)
    extra = restore_checkpoint(folder, trainer)
    if extra:
        load_state(extra["state"])
    log.rewind(trainer.done)
    rows = log.rows()

    def save() -> None:
        save_checkpoint(folder, trainer, tokenizer, {"state": state()})
        tidy()

    def tidy() -> None:
        older = saved_steps(folder)[:-1]  # no step has shown yet what the newest is worth
        drop_checkpoints(folder, watch.best(rows, older) if watch else None)

    tidy()  # a kill may have come before it
    while trainer.done < trainer.steps:
        start = time.perf_counter()
        number = trainer.done
        row = step(number)
        trainer.done = number + 1
        seconds = time.perf_counter() - start
        row = {"step": number, **row, "seconds": seconds}
        row["tokens_per_second"] = row["tokens"] / seconds
        log.append(row)
        rows.append(row)
        _stop_if_collapsed(watch, rows, folder)
        progress.update(
            trainer.done,
            em=row.get("em"),
            calls=row.get("calls_mean"),
            tokens_per_second=row["tokens_per_second"],
            loss=row.get("loss"),
        )
        if trainer.done % TRIM_EVERY == 0:
            trim_memory()
        if trainer.done % stage.checkpoint_every == 0:
            save()
    save()
    return rows


def _stop_if_collapsed(watch: Watch | None, rows: list[Row], folder: Path) -> None:
    """Raises UserError with the likely cause and the checkpoint from before."""
    collapse = watch.collapse(rows) if watch else None
    if watch is None or collapse is None:
        return
    best = watch.best(rows, saved_steps(folder))
    if best is None:
        kept = (
            "no checkpoint is from before, so what is left is the model that the stage began with"
        )
    else:
        kept = f"the checkpoint of step {best} is from before: {checkpoint_folder(folder, best)}"
    raise UserError(collapse.sentence(folder.name, kept))
