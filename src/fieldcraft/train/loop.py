"""A stage of training: steps, a metrics row each, checkpoints, and resuming after a kill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from fieldcraft.config.names import shown
from fieldcraft.config.stages import Stage
from fieldcraft.records.events import Said, Sink, StepDone, during
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.reading import reading
from fieldcraft.records.remedies import put_aside
from fieldcraft.train.checkpoint import (
    checkpoint_folder,
    drop_checkpoints,
    newest_steps,
    restore_checkpoint,
    save_checkpoint,
    saved_steps,
)
from fieldcraft.train.memory import trim_memory
from fieldcraft.train.stages.base import Row, StageType
from fieldcraft.train.watch import Watch
from fieldcraft.types import UserError

# Steps in a row, or all of a shorter stage, that may have nothing to train: a step alone may be bad
# luck, but five of them are more than a thousand rollouts of a usual recipe.
MOST_IDLE = 5
TRIM_EVERY = 5  # steps; one can leave 100 MB of freed memory, and giving it back takes 0.1 s


Probe = Callable[[int], Awaitable[Row]]


async def no_probe(_: int) -> Row:
    """Return no measurement."""
    return {}


async def run_steps(
    stage: StageType,
    settings: Stage,
    folder: Path,
    tokenizer: Any,
    emit: Sink,
    probe: Probe = no_probe,
) -> list[Row]:
    """Run every step of a stage that no checkpoint in `folder` has behind it.

    A step is a function of its number, the weights and the stage's state alone, so a run that was
    killed and resumed ends with the numbers of one that was not. The rows of new steps are told to
    `emit`, whose subscriber `write_metrics` keeps them in `folder`. `probe` is asked after every
    step, by the number of steps done, and adds what it measures to the step's row. Returns all
    rows, earlier ones included.

    Raises UserError if the stage's watch finds that the run has collapsed; the healthiest of its
    checkpoints is then still there. So does every further attempt, without a step. Raises UserError
    too if too many steps in a row had nothing to train; further attempts repeat them.
    """
    trainer, watch = stage.trainer, stage.watch
    log = MetricsLog(folder / "metrics.jsonl")
    _stop_if_collapsed(watch, log.rows(), folder)
    extra = restore_checkpoint(folder, trainer)
    if extra:
        newest = checkpoint_folder(folder, trainer.done)
        with reading(newest, f"{put_aside(newest)} to resume from before it"):
            stage.load_state_dict(extra["state"])
    log.rewind(trainer.done)
    rows = log.rows()

    def save() -> None:
        save_checkpoint(folder, trainer, tokenizer, {"state": stage.state_dict()})
        tidy()

    def tidy() -> None:
        older = saved_steps(folder)[:-1]  # no step has shown yet what the newest is worth
        best = watch.best(rows, older) if watch else None
        keep = newest_steps(folder, settings.keep_checkpoints or 1)
        drop_checkpoints(folder, keep if best is None else [*keep, best])

    tidy()  # a kill may have come before it
    with during(emit, folder.name, trainer.steps, "steps"):
        while trainer.done < trainer.steps:
            number = trainer.done
            row = await _timed_step(stage, number)
            trainer.done = number + 1
            row |= await probe(trainer.done)
            emit(StepDone(folder.name, row, log.path))
            rows.append(row)
            if said := stage.notice(rows):
                emit(Said(said))
            await asyncio.sleep(0)  # where Ctrl-C takes effect: a step need not wait for anything
            _stop_if_collapsed(watch, rows, folder)
            _stop_if_idle(stage, rows, folder)
            if trainer.done % TRIM_EVERY == 0:
                trim_memory()
            if trainer.done % settings.checkpoint_every == 0:
                save()
    save()
    trainer.settle()
    return rows


async def _timed_step(stage: StageType, number: int) -> Row:
    start = time.perf_counter()
    row: object = await stage.step(number)
    seconds = time.perf_counter() - start
    if not isinstance(row, dict) or "tokens" not in row:
        raise UserError(
            f"the stage type {type(stage).__name__} returned {shown(row)} for a step: return its"
            " metrics as a dict, with 'tokens' among them."
        )
    return {
        "step": number,
        **row,
        "seconds": seconds,
        "tokens_per_second": row["tokens"] / seconds,
    }


def _stop_if_idle(stage: StageType, rows: Sequence[Row], folder: Path) -> None:
    """Raise UserError with the reason, if too many steps in a row were idle. What decides are
    metrics alone, so that a run that was resumed decides as one that was not."""
    most = min(MOST_IDLE, stage.trainer.steps)
    reasons = [stage.idle(row) for row in rows[-most:]]
    if len(reasons) == most and all(reasons):
        raise UserError(
            f"stage '{folder.name}' had nothing to train in {most} steps in a row, the last of them"
            f" step {rows[-1]['step']}, because {reasons[-1]}."
        )


def _stop_if_collapsed(watch: Watch | None, rows: list[Row], folder: Path) -> None:
    """Raise UserError with the likely cause and the checkpoint from before, if the run has
    collapsed."""
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
