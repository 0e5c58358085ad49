"""Training of one stage of a run, from its start model to its final model."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from fieldcraft.config.components import ComponentKind
from fieldcraft.config.names import resolve
from fieldcraft.config.stages import Stage
from fieldcraft.dialects import BaseDialect
from fieldcraft.engine.model_files import add_eos_token
from fieldcraft.records.events import LogMessage
from fieldcraft.records.files import replace_nonfinite, write_json
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.dialects import load_dialect
from fieldcraft.runs.evaluating import open_eval_callback
from fieldcraft.runs.memory import raise_memory_errors
from fieldcraft.runs.stage_inputs import LocalStageInputs
from fieldcraft.train.loop import run_steps
from fieldcraft.train.lora import load_policy
from fieldcraft.train.protocols import TrainablePolicy, TrainersLostError
from fieldcraft.train.saving import list_checkpoint_steps, prune_checkpoints, save_model
from fieldcraft.train.stages.base import TrainingStage
from fieldcraft.types import UserError

MAX_RESTARTS = 3  # consecutive restarts of ranks without a checkpoint in between


async def train_stage(context: RunContext, name: str, start: Path) -> None:
    """Train a stage from the model in `start`, unless it is done."""
    folder, settings = context.folder.stage(name), context.recipe.stages[name]
    if not folder.is_done:
        with raise_memory_errors(name):
            await _train_with_restarts(context, name, settings, start)
    prune_checkpoints(folder.path, settings.keep_checkpoints or 0)


async def _train_with_restarts(
    context: RunContext, name: str, settings: Stage, start: Path
) -> None:
    """Train a stage to its end. If a rank crashes, all are restarted, and the stage continues from
    its newest checkpoint, like a killed run. Raises UserError if restarts make no progress."""
    folder, failures = context.folder.stage(name).path, 0
    while True:
        before = list_checkpoint_steps(folder)
        try:
            return await _train(context, name, settings, start)
        except TrainersLostError as error:
            failures = 1 if list_checkpoint_steps(folder) != before else failures + 1
            if failures == MAX_RESTARTS:
                raise UserError(
                    f"ranks of stage '{name}' crashed {failures} times without a checkpoint in"
                    " between: look into Ray's logs (/tmp/ray/session_latest/logs) for the cause,"
                    " and lower optim.micro_batch_tokens if it was memory."
                ) from error
            done = max(list_checkpoint_steps(folder), default=0)
            context.emit(
                LogMessage(f"{error}; restarting all ranks; training continues after step {done}")
            )


async def _train(context: RunContext, name: str, settings: Stage, start: Path) -> None:
    """Run the remaining steps of a stage, then write its final model and its record."""
    started = time.perf_counter()
    folder = context.folder.stage(name)
    dialect = load_dialect(context.recipe, start)
    tokenizer = dialect.tokenizer
    # The environment is opened with the budget of the first step.
    periods = settings.budget_periods(context.recipe.budget)
    budget = periods[0].budget if periods else context.recipe.budget
    sharded = context.cluster and context.cluster.find_stage_inputs()
    async with context.open_environment(dialect, budget) as environment:
        stage_inputs = (sharded or LocalStageInputs)(context, name, start, dialect, environment)
        stage = await find_stage_class(settings).create(settings, stage_inputs)
        setup_seconds = time.perf_counter() - started
        try:
            make_engine = partial(stage_inputs.make_engine, stage.trainer)
            async with open_eval_callback(
                context, start, stage, environment, make_engine
            ) as eval_callback:
                rows = await run_steps(
                    stage,
                    settings,
                    folder.path,
                    tokenizer,
                    context.emit,
                    eval_callback,
                    lambda: context.emit.early_stop,
                )
        finally:
            await stage.close()
    _write_final_model(context, name, stage.trainer, dialect)
    seconds = setup_seconds + sum(row["seconds"] for row in rows)
    write_json(folder.record, {"seconds": seconds, "metrics": replace_nonfinite(rows[-1])})


def _write_final_model(
    context: RunContext, name: str, trainer: TrainablePolicy, dialect: BaseDialect
) -> None:
    """Write the trained model, which stops at the dialect's end of turn, with its adapter merged.
    The adapter is also written."""
    folder, tokenizer = context.folder.stage(name), dialect.tokenizer
    write = partial(trainer.write, tokenizer=tokenizer)
    if (lora := context.recipe.lora) is not None:
        context.folder.make_once(f"{name}/{folder.adapter.name}", write)
        base, dtype = context.folder.model("start"), context.recipe.dtype
        _, adapter = load_policy(base, dtype, lora, adapter=folder.adapter)
        assert adapter is not None
        probe = trainer.run_probe()
        write = partial(save_model, model=adapter.merge(), tokenizer=tokenizer, probe=probe)

    def write_with_end(draft: Path) -> None:
        write(draft)
        add_eos_token(draft, dialect.turn_end.token_id)

    context.folder.make_once(f"{name}/{folder.model.name}", write_with_end)


def find_stage_class(settings: Stage) -> type[TrainingStage]:
    """Return the class for the `type` of a stage. Raises UserError for an object that is not a
    stage class."""
    found: type[TrainingStage] = resolve(ComponentKind.STAGE, settings.type)
    return found
