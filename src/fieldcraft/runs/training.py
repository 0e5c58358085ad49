"""One stage of a run: from the model it starts from to the model it leaves."""

from __future__ import annotations

import shutil
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fieldcraft.config.names import Kind, find
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import Filters, Optim
from fieldcraft.config.stages import Stage
from fieldcraft.data.steps_io import read_demonstrations
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.evals.fidelity import fidelity_row
from fieldcraft.records.events import Sink
from fieldcraft.records.files import write_json
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.rollout.environments import Play
from fieldcraft.runs.build import make_rubric, make_runner
from fieldcraft.runs.context import Context
from fieldcraft.runs.filtering import DEMONSTRATIONS, filter_shown, write_filtered
from fieldcraft.runs.memory import within_memory
from fieldcraft.runs.probing import make_probe
from fieldcraft.train.critic import Critic
from fieldcraft.train.learning import Learning, Reference, Valuing
from fieldcraft.train.loop import run_steps
from fieldcraft.train.lora import Adapter
from fieldcraft.train.model import load_model, require_tokenizer, torch_type
from fieldcraft.train.saving import save_model
from fieldcraft.train.stages.base import Pair, Row, StageType
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Dialect, PolicyEngine, Task, Trajectory, UserError


async def train_stage(context: Context, name: str, settings: Stage, start: Path) -> Path:
    """Train a stage from the model in `start`, if it is not done, and return the folder of its
    model."""
    folder = context.folder.stage(name)
    if not folder.done:
        with within_memory(name):
            await _train(context, name, settings, start)
    for path in folder.path.glob("step-*"):
        shutil.rmtree(path)
    return folder.model


async def _train(context: Context, name: str, settings: Stage, start: Path) -> None:
    began = time.perf_counter()
    folder = context.folder.stage(name)
    dialect = context.dialect(start)
    tokenizer = dialect.tokenizer
    async with context.play(dialect) as play:
        material = StageMaterial(context, name, start, dialect, play)
        stage = await stage_type(settings).open(settings, material)
        prepared = time.perf_counter() - began
        try:
            engine = partial(material.engine, stage.trainer)
            probe = make_probe(context, dialect, stage, play, engine)
            rows = await run_steps(stage, settings, folder.path, tokenizer, context.emit, probe)
        finally:
            await stage.close()
    write = partial(stage.trainer.write, tokenizer=tokenizer)
    if context.recipe.lora is not None:
        context.folder.once(f"{name}/{folder.adapter.name}", write)
        model = _merged(context, folder.adapter)
        write = partial(save_model, model=model, tokenizer=tokenizer)
    context.folder.once(f"{name}/{folder.model.name}", write)
    seconds = prepared + sum(row["seconds"] for row in rows)
    write_json(folder.record, {"seconds": seconds, "metrics": rows[-1]})


def stage_type(settings: Stage) -> type[StageType]:
    """The class behind the `type` of a stage. Raises UserError for one that is none."""
    found: type[StageType] = find(Kind.STAGE, settings.type)
    return found


def _merged(context: Context, adapter: Path) -> Any:
    """The first model with an adapter added to its weights, in float32, which holds both."""
    recipe = context.recipe
    assert recipe.lora is not None
    first = context.folder.model("start")
    base = load_model(first, torch.device("cpu"), recipe.dtype).float()
    return Adapter(base, recipe.lora, recipe.seed, adapter).merged()


@dataclass
class StageMaterial:
    """`train.stages.base.Material` of one stage of a run."""

    context: Context
    name: str
    start: Path
    dialect: Dialect
    play: Play | None  # in an environment of others

    def __post_init__(self) -> None:
        self.recipe: Recipe = self.context.recipe
        self.emit: Sink = self.context.emit
        self.seed = zlib.crc32(f"{self.recipe.seed}:{self.name}".encode())
        self.folder: Path = self.context.folder.stage(self.name).path

    def trajectories(self, data: str, count: int | None) -> Sequence[Trajectory]:
        found = self.context.inputs.trajectories(data, count, self.dialect, self.context.schemas)
        return self._some(data, found)

    def filtered(self, data: str, count: int | None, filters: Filters) -> Sequence[Trajectory]:
        """Filtered once, in the folder `data` of the stage, with the data card."""
        inputs, dialect, schemas = self.context.inputs, self.dialect, self.context.schemas

        def make(folder: Path) -> None:
            shown = inputs.shown(data, count, dialect, schemas)
            found = filter_shown(self.recipe, shown, filters, dialect)
            title = f"{self.recipe.recipe}, stage {self.name}"
            write_filtered(folder, title, shown, found, self.recipe)

        folder = self.context.folder.once(f"{self.name}/data", make)
        shown = read_demonstrations(folder / DEMONSTRATIONS)
        return self._some(data, inputs.encoded(shown, dialect, schemas) if shown else [])

    def pairs(self, data: str, count: int | None) -> Sequence[Pair]:
        found = self.context.inputs.pairs(data, count, self.dialect, self.context.schemas)
        return self._some(data, found)

    def _some(self, data: str, found: Sequence[Any]) -> Sequence[Any]:
        if not found:
            raise UserError(
                f"the data set '{data}' of stage '{self.name}' is empty: give it examples, let its"
                " filters keep some, or remove the stage."
            )
        return found

    def training_questions(self) -> Sequence[Task]:
        selected = self.context.selected
        return self.context.inputs.train_tasks() if selected is None else selected

    def plan(self, task: Task) -> str:
        return self.context.inputs.plan(task, self.dialect)

    @property
    def threads_beside_sampling(self) -> int:
        return self.context.threads.beside

    def trainer(self, optim: Optim, steps: int) -> Learning:
        """All weights of the model, or an adapter on the run's first model that continues that of
        the last stage.

        Adding that one to the weights instead would lose what is smaller than their type can tell
        apart: in bfloat16 anything below a 256th of a weight.
        """
        settings, first = self.recipe.lora, self.context.folder.model("start")
        if settings is None:
            model = load_model(self.start, self.context.device)
            return Trainer(model, optim, steps, dtype=torch_type(self.recipe.dtype))
        model = load_model(first, self.context.device, self.recipe.dtype)
        last = None if self.start == first else self.start.with_name("adapter")
        adapter = Adapter(model, settings, self.seed, last)
        return Trainer(model, optim, steps, adapter)

    def reader(self, stage: str | None, optim: Optim) -> Reference:
        return Trainer(self._model(stage), optim, 1)

    def checkpoint(self, folder: Path, optim: Optim) -> Reference:
        require_tokenizer(folder, self.dialect.tokenizer)
        return Trainer(self._read(folder), optim, 1)

    def critic(self, settings: Rl, trainer: Learning) -> Valuing:
        assert isinstance(trainer, Trainer)
        own = settings.critic.backbone == "own"
        model = load_model(self.start, self.context.device) if own else trainer.model
        dtype = torch_type(self.recipe.dtype)
        return Critic(model, settings.critic, settings.optim, settings.steps, dtype)

    def environment(self) -> ToolEnvironment:
        return self.context.environment(self.dialect)

    def engine(self, trainer: Learning) -> PolicyEngine:
        assert isinstance(trainer, Trainer)
        return self.context.engine(trainer.model, self.dialect)

    def frozen_engine(self, stage: str | None) -> PolicyEngine:
        return self.context.engine(self._model(stage).eval(), self.dialect)

    def rubric(self, settings: Rl) -> Rubric:
        recipe = self.recipe
        return make_rubric(
            settings, recipe.budget, self.context.judge, recipe.correct, make_runner(recipe)
        )

    def fidelity(self, trajectories: Sequence[Trajectory]) -> Row:
        return fidelity_row(self.context.inputs.judge, trajectories)

    def _model(self, stage: str | None) -> Any:
        """That of an earlier stage, or the one that the stage starts from."""
        return self._read(self.start if stage is None else self.context.folder.model(stage))

    def _read(self, folder: Path) -> Any:
        return load_model(folder, self.context.device, self.recipe.dtype)
