"""A stage of training: steps, a metrics row each, checkpoints, and resuming after a kill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from fieldcraft.config.names import format_short
from fieldcraft.config.stages import Stage
from fieldcraft.records.events import EventHandler, LogMessage, StepCompleted, track_phase
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.records.remedies import advise_renaming
from fieldcraft.train.checkpoint import (
    get_checkpoint_folder,
    list_checkpoint_steps,
    list_newest_steps,
    prune_checkpoints,
    restore_checkpoint,
    save_checkpoint,
)
from fieldcraft.train.collapse_detector import CollapseDetector
from fieldcraft.train.memory import trim_memory
from fieldcraft.train.stages.base import StepMetrics, TrainingStage
from fieldcraft.types import UserError

# Steps in a row, or all of a shorter stage, that may have nothing to train: a step alone may be bad
# luck, but five of them are more than a thousand rollouts of a usual recipe.
MAX_IDLE_STEPS = 5
TRIM_INTERVAL_STEPS = (
    5  # steps; one can leave 100 MB of freed memory, and giving it back takes 0.1 s
)


EvalCallback = Callable[[int], Awaitable[StepMetrics]]


async def skip_evaluation(_: int) -> StepMetrics:
    """Return no measurement."""
    return {}


async def run_steps(
    stage: TrainingStage,
    settings: Stage,
    folder: Path,
    tokenizer: Any,
    emit: EventHandler,
    evaluate: EvalCallback = skip_evaluation,
) -> list[StepMetrics]:
    """Run every step of a stage that no checkpoint in `folder` has behind it.

    A step is a function of its number, the weights and the stage's state alone, so a run that was
    killed and resumed ends with the numbers of one that was not. The rows of new steps are told to
    `emit`, whose subscriber `write_metrics` keeps them in `folder`. `evaluate` is asked after every
    step, by the number of steps done, and adds what it measures to the step's row. Returns all
    rows, earlier ones included.

    Raises UserError if the stage's collapse detector finds that the run has collapsed; the
    healthiest of its checkpoints is then still there. So does every further attempt, without a
    step. Raises UserError too if too many steps in a row had nothing to train; further attempts
    repeat them.
    """
    trainer, detector = stage.trainer, stage.collapse_detector
    log = MetricsLog(folder / "metrics.jsonl")
    _raise_if_collapsed(detector, log.read_rows(), folder)
    extra = restore_checkpoint(folder, trainer)
    if extra:
        newest = get_checkpoint_folder(folder, trainer.done)
        with raise_read_errors(newest, f"{advise_renaming(newest)} to resume from before it"):
            stage.load_state_dict(extra["state"])
    log.truncate_after(trainer.done)
    rows = log.read_rows()

    def save() -> None:
        save_checkpoint(folder, trainer, tokenizer, {"state": stage.state_dict()})
        prune()

    def prune() -> None:
        older = list_checkpoint_steps(folder)[:-1]  # no step has shown yet what the newest is worth
        healthiest = detector.find_healthiest_checkpoint(rows, older) if detector else None
        keep = list_newest_steps(folder, settings.keep_checkpoints or 1)
        prune_checkpoints(folder, keep if healthiest is None else [*keep, healthiest])

    prune()  # a kill may have come before it
    with track_phase(emit, folder.name, trainer.steps, "steps"):
        while trainer.done < trainer.steps:
            number = trainer.done
            row = await _run_timed_step(stage, number)
            trainer.done = number + 1
            row |= await evaluate(trainer.done)
            emit(StepCompleted(folder.name, row, log.path))
            rows.append(row)
            if message := stage.make_log_message(rows):
                emit(LogMessage(message))
            await asyncio.sleep(0)  # where Ctrl-C takes effect: a step need not wait for anything
            _raise_if_collapsed(detector, rows, folder)
            _raise_if_idle(stage, rows, folder)
            if trainer.done % TRIM_INTERVAL_STEPS == 0:
                trim_memory()
            if trainer.done % settings.checkpoint_every == 0:
                save()
    save()
    trainer.wait_for_saves()
    return rows


async def _run_timed_step(stage: TrainingStage, number: int) -> StepMetrics:
    start = time.perf_counter()
    row: object = await stage.step(number)
    seconds = time.perf_counter() - start
    if not isinstance(row, dict) or "tokens" not in row:
        raise UserError(
            f"the stage type {type(stage).__name__} returned {format_short(row)} for a step: return"
            " its metrics as a dict, with 'tokens' among them."
        )
    return {
        "step": number,
        **row,
        "seconds": seconds,
        "tokens_per_second": row["tokens"] / seconds,
    }


def _raise_if_idle(stage: TrainingStage, rows: Sequence[StepMetrics], folder: Path) -> None:
    """Raise UserError with the reason, if too many steps in a row were idle. What decides are
    metrics alone, so that a run that was resumed decides as one that was not."""
    max_idle = min(MAX_IDLE_STEPS, stage.trainer.steps)
    reasons = [stage.explain_idle(row) for row in rows[-max_idle:]]
    if len(reasons) == max_idle and all(reasons):
        raise UserError(
            f"stage '{folder.name}' had no trainable token in {max_idle} consecutive steps up to"
            f" step {rows[-1]['step']}, because {reasons[-1]}."
        )


def _raise_if_collapsed(
    detector: CollapseDetector | None, rows: list[StepMetrics], folder: Path
) -> None:
    """Raise UserError with the likely cause and the checkpoint from before, if the run has
    collapsed."""
    report = detector.detect(rows) if detector else None
    if detector is None or report is None:
        return
    healthiest = detector.find_healthiest_checkpoint(rows, list_checkpoint_steps(folder))
    if healthiest is None:
        checkpoint_note = (
            "no checkpoint precedes the collapse; only the initial model of the stage remains"
        )
    else:
        checkpoint_note = (
            f"the checkpoint of step {healthiest} precedes the collapse: "
            f"{get_checkpoint_folder(folder, healthiest)}"
        )
    raise UserError(report.format_message(folder.name, checkpoint_note))
