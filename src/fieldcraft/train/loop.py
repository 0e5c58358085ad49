"""Training loop of a stage: steps with a metrics row each, checkpoints, and resuming."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from fieldcraft.config.names import format_short
from fieldcraft.config.stages import Stage
from fieldcraft.records.events import (
    EarlyStop,
    EarlyStopError,
    EventHandler,
    LogMessage,
    StepCompleted,
    track_phase,
)
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.reading import advise_renaming, raise_read_errors
from fieldcraft.train.collapse_detector import CollapseDetector
from fieldcraft.train.memory import trim_memory
from fieldcraft.train.saving import (
    get_checkpoint_folder,
    list_checkpoint_steps,
    prune_checkpoints,
    restore_checkpoint,
    save_checkpoint,
)
from fieldcraft.train.stages.base import StepMetrics, TrainingStage
from fieldcraft.types import UserError

# Consecutive steps, or all of a shorter stage, without trainable tokens that stop the stage. A
# single one may be chance, but five are more than a thousand rollouts of a typical recipe.
MAX_IDLE_STEPS = 5
TRIM_INTERVAL_STEPS = 5  # a step can leave 100 MB of freed memory, and returning it takes 0.1 s


EvalCallback = Callable[[int], Awaitable[StepMetrics]]
StopCheck = Callable[[], EarlyStop | None]


async def skip_evaluation(_: int) -> StepMetrics:
    """Return no metrics."""
    return {}


def never_stop() -> None:
    """Return that no event handler requests the end of the training."""


async def run_steps(
    stage: TrainingStage,
    settings: Stage,
    folder: Path,
    tokenizer: Any,
    emit: EventHandler,
    evaluate: EvalCallback = skip_evaluation,
    find_early_stop: StopCheck = never_stop,
) -> list[StepMetrics]:
    """Run the remaining steps of a stage, after the newest checkpoint in `folder`.

    A step depends only on its number, the weights and the stage's state, so a run that was killed
    and resumed gives the same results as an uninterrupted one. Rows of new steps are emitted as
    events, which the subscriber `write_metrics` stores in `folder`. `evaluate` is called after
    every step with the number of completed steps, and its metrics are added to the step's row.
    `find_early_stop` is called after every step but the last; if it returns a request, a checkpoint
    is saved and EarlyStopError is raised. Returns all rows, including earlier ones.

    Raises UserError if the stage's collapse detector reports a collapse; the healthiest checkpoint
    is retained. Further attempts raise it again, without a step. Also raises UserError if too many
    consecutive steps had no trainable token; further attempts repeat them.
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
        log.sync()  # a checkpoint that outlives a power failure needs the rows of all its steps
        save_checkpoint(folder, trainer, tokenizer, {"state": stage.state_dict()})
        prune()

    def prune() -> None:
        older = list_checkpoint_steps(folder)[:-1]  # no later step has assessed the newest one yet
        healthiest = detector.find_healthiest_checkpoint(rows, older) if detector else None
        prune_checkpoints(folder, settings.keep_checkpoints or 1, healthiest)

    prune()  # a kill may have prevented it
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
            await asyncio.sleep(0)  # Ctrl-C takes effect here: a step may never wait
            _raise_if_collapsed(detector, rows, folder)
            _raise_if_idle(stage, rows, folder)
            if trainer.done % TRIM_INTERVAL_STEPS == 0:
                trim_memory()
            early_stop = find_early_stop() if trainer.done < trainer.steps else None
            if early_stop or trainer.done % settings.checkpoint_every == 0:
                save()
            if early_stop:
                trainer.wait_for_saves()
                progress = f"of stage '{folder.name}' after step {trainer.done} of {trainer.steps}"
                raise EarlyStopError(folder.name, progress, early_stop)
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
    """Raise UserError with the reason if too many consecutive steps were idle. The decision depends
    only on metrics, so a resumed run decides like an uninterrupted one."""
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
    """Raise UserError with the likely cause and the last healthy checkpoint if the run has
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
