"""A stage of training: steps, a metrics row each, checkpoints, and going on after a kill."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fieldcraft.config import Stage
from fieldcraft.store import MetricsLog
from fieldcraft.terminal import StageProgress
from fieldcraft.train.checkpoint import restore_checkpoint, save_checkpoint
from fieldcraft.train.trainer import Trainer

Row = dict[str, Any]


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
) -> list[Row]:
    """Run `step(i)` for every step that no checkpoint in `folder` has behind it.

    A step is a function of its number, the weights and `state` alone, so a run that was killed and
    goes on ends with the numbers of one that was not. Returns all rows, earlier ones included.
    """
    extra = restore_checkpoint(folder, trainer)
    if extra:
        load_state(extra["state"])
    log = MetricsLog(folder / "metrics.jsonl")
    log.rewind(trainer.done)
    while trainer.done < trainer.steps:
        start = time.perf_counter()
        number = trainer.done
        row = step(number)
        trainer.done = number + 1
        seconds = time.perf_counter() - start
        row = {"step": number, **row, "seconds": seconds}
        row["tokens_per_second"] = row["tokens"] / seconds
        log.append(row)
        progress.update(
            trainer.done,
            em=row.get("em"),
            calls=row.get("calls_mean"),
            tokens_per_second=row["tokens_per_second"],
            loss=row.get("loss"),
        )
        if trainer.done % stage.checkpoint_every == 0:
            save_checkpoint(folder, trainer, tokenizer, {"state": state()})
    save_checkpoint(folder, trainer, tokenizer, {"state": state()})
    return log.rows()
