"""One stage of a run: from the model it starts from to the model it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fieldcraft.cluster.ranks import RanksLost
from fieldcraft.config.names import Kind, find
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sections import Limits
from fieldcraft.config.stages import Stage
from fieldcraft.dialects import BaseDialect
from fieldcraft.engine.writing import add_end
from fieldcraft.records.events import Said
from fieldcraft.records.files import write_json
from fieldcraft.rollout.environments import Play
from fieldcraft.runs.context import Context
from fieldcraft.runs.material import RankedMaterial, StageMaterial
from fieldcraft.runs.memory import within_memory
from fieldcraft.runs.probing import open_probe
from fieldcraft.train.checkpoint import drop_checkpoints, newest_steps, saved_steps
from fieldcraft.train.loop import run_steps
from fieldcraft.train.lora import Adapter
from fieldcraft.train.model import load_model
from fieldcraft.train.saving import save_model
from fieldcraft.train.stages.base import StageType
from fieldcraft.types import UserError

MOST_DEATHS = 3  # of ranks in a row, without a checkpoint in between


async def train_stage(context: Context, name: str, settings: Stage, start: Path) -> Path:
    """Train a stage from the model in `start`, if it is not done, and return the folder of its
    model."""
    folder = context.folder.stage(name)
    if not folder.done:
        with within_memory(name):
            await _until_trained(context, name, settings, start)
    drop_checkpoints(folder.path, newest_steps(folder.path, settings.keep_checkpoints or 0))
    return folder.model


async def _until_trained(context: Context, name: str, settings: Stage, start: Path) -> None:
    """Train a stage to its end. If a rank dies, all are started again, and the stage continues from
    its newest checkpoint, as a run does that was killed. Raises UserError if that leads nowhere."""
    folder, deaths = context.folder.stage(name).path, 0
    while True:
        before = saved_steps(folder)
        try:
            return await _train(context, name, settings, start)
        except RanksLost as lost:
            deaths = 1 if saved_steps(folder) != before else deaths + 1
            if deaths == MOST_DEATHS:
                raise UserError(
                    f"ranks of stage '{name}' died {deaths} times without a checkpoint in between:"
                    " look into Ray's logs (/tmp/ray/session_latest/logs) for the cause, and lower"
                    " optim.micro_tokens if it was memory."
                ) from lost
            done = max(saved_steps(folder), default=0)
            context.emit(Said(f"{lost}; all are started again, and continue after step {done}"))


async def _train(context: Context, name: str, settings: Stage, start: Path) -> None:
    began = time.perf_counter()
    folder = context.folder.stage(name)
    dialect = context.dialect(start)
    tokenizer = dialect.tokenizer
    budget = _budget(context.recipe, settings)
    async with context.play(dialect, budget) as play:
        material = _material(context, name, start, dialect, play)
        stage = await stage_type(settings).open(settings, material)
        prepared = time.perf_counter() - began
        try:
            engine = partial(material.engine, stage.trainer)
            async with open_probe(context, start, stage, play, budget, engine) as probe:
                rows = await run_steps(stage, settings, folder.path, tokenizer, context.emit, probe)
        finally:
            await stage.close()
    write = partial(stage.trainer.write, tokenizer=tokenizer)
    if context.recipe.lora is not None:
        context.folder.once(f"{name}/{folder.adapter.name}", write)
        model = _merged(context, folder.adapter)
        write = partial(save_model, model=model, tokenizer=tokenizer, said=stage.trainer.said())
    whole = partial(_write_whole, write, dialect)
    context.folder.once(f"{name}/{folder.model.name}", whole)
    seconds = prepared + sum(row["seconds"] for row in rows)
    write_json(folder.record, {"seconds": seconds, "metrics": rows[-1]})


def _write_whole(write: Callable[[Path], None], dialect: BaseDialect, folder: Path) -> None:
    """Write a model that stops where the dialect taught it to end its turns."""
    write(folder)
    add_end(folder, dialect.end.token)


def _budget(recipe: Recipe, settings: Stage) -> Limits:
    """Return the budget of a stage in an environment of others, which is opened once."""
    return next((period.limits for period in settings.periods(recipe.budget)), recipe.budget)


def _material(
    context: Context, name: str, start: Path, dialect: BaseDialect, play: Play | None
) -> StageMaterial:
    ranks = context.new_ranks()
    if ranks is None:
        return StageMaterial(context, name, start, dialect, play)
    return RankedMaterial(context, name, start, dialect, play, ranks)


def stage_type(settings: Stage) -> type[StageType]:
    """Return the class behind the `type` of a stage. Raises UserError for one that is none."""
    found: type[StageType] = find(Kind.STAGE, settings.type)
    return found


def _merged(context: Context, adapter: Path) -> Any:
    """Return the first model with an adapter added to its weights, in float32, which holds both."""
    recipe = context.recipe
    assert recipe.lora is not None
    first = context.folder.model("start")
    base = load_model(first, torch.device("cpu"), recipe.dtype).float()
    return Adapter(base, recipe.lora, recipe.seed, adapter).merged()
