"""Parts that a stage of a run is made of, in this process or with trainers in others."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from fieldcraft.cluster.ranks import RayRanks
from fieldcraft.cluster.sources import OnRanks
from fieldcraft.config.filters import Filters
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import Optim
from fieldcraft.data.steps_io import read_demonstrations
from fieldcraft.engine.base import PolicyEngine
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.evals.fidelity import fidelity_row
from fieldcraft.records.events import Said, Sink
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.rollout.environments import Play
from fieldcraft.runs.build import make_rubric, make_runner
from fieldcraft.runs.context import Context
from fieldcraft.runs.filtering import DEMONSTRATIONS, filter_shown, write_filtered
from fieldcraft.train.critic import Critic
from fieldcraft.train.learning import Learning, Reference, Valuing
from fieldcraft.train.lora import Adapter
from fieldcraft.train.model import empty_model, load_model, require_tokenizer, torch_type
from fieldcraft.train.sharding.specs import CriticSpec, PolicySpec, ReaderSpec
from fieldcraft.train.sharding.trainer import ShardedCritic, ShardedTrainer, make_reader
from fieldcraft.train.stages.base import Pair, Row
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Dialect, Task, Trajectory, UserError


@dataclass
class StageMaterial:
    """Material (`train.stages.base.Material`) of one stage of a run."""

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
        inputs, schemas = self.context.inputs, self.context.schemas
        found = inputs.trajectories(data, count, self.dialect, schemas)
        self._say(inputs.notes(data, self.dialect, schemas))
        return self._some(data, found)

    def filtered(self, data: str, count: int | None, filters: Filters) -> Sequence[Trajectory]:
        """Return the demonstrations that pass the filters; this is done once, in the folder `data`
        of the stage, with the data card."""
        inputs, dialect, schemas = self.context.inputs, self.dialect, self.context.schemas

        def make(folder: Path) -> None:
            shown = inputs.shown(data, count, dialect, schemas)
            self._say(inputs.notes_of_shown(data))
            found = filter_shown(self.recipe, shown, filters, dialect, self.context.correct)
            title = f"{self.recipe.recipe}, stage {self.name}"
            write_filtered(folder, title, shown, found, self.recipe)

        folder = self.context.folder.once(f"{self.name}/data", make)
        shown = read_demonstrations(folder / DEMONSTRATIONS)
        return self._some(data, inputs.encoded(shown, dialect, schemas) if shown else [])

    def pairs(self, data: str, count: int | None) -> Sequence[Pair]:
        inputs, schemas = self.context.inputs, self.context.schemas
        found = inputs.pairs(data, count, self.dialect, schemas)
        self._say(inputs.notes(data, self.dialect, schemas))
        return self._some(data, found)

    def _say(self, notes: Sequence[str]) -> None:
        for note in notes:
            self.emit(Said(f"stage {self.name}: {note}"))

    def _some(self, data: str, found: Sequence[Any]) -> Sequence[Any]:
        if not found:
            raise UserError(
                f"the data set '{data}' of stage '{self.name}' is empty: give it examples, let its"
                " filters keep some, or remove the stage."
            )
        return found

    def training_questions(self) -> Sequence[Task]:
        return self.context.training_tasks()

    def plan(self, task: Task) -> str:
        return self.context.inputs.plan(task, self.dialect)

    @property
    def threads_beside_sampling(self) -> int:
        return self.context.threads.beside

    def trainer(self, optim: Optim, steps: int) -> Learning:
        """Return a trainer of all weights of the model, or of an adapter on the run's first model
        that continues that of the last stage.

        Adding that one to the weights instead would lose what is smaller than their type can tell
        apart: in bfloat16 anything below a 256th of a weight.
        """
        settings = self.recipe.lora
        if settings is None:
            model = load_model(self.start, self.context.device)
            return Trainer(model, optim, steps, dtype=torch_type(self.recipe.dtype))
        first, last = self._first_and_last
        model = load_model(first, self.context.device, self.recipe.dtype)
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
            settings,
            recipe.budget,
            self.context.judge,
            recipe.correct,
            make_runner(recipe),
            recipe.highest_call_cost,
        )

    def fidelity(self, trajectories: Sequence[Trajectory]) -> Row:
        return fidelity_row(self.context.inputs.judge, trajectories)

    @property
    def _first_and_last(self) -> tuple[Path, Path | None]:
        """Folder of the model below an adapter, and of the adapter of the last stage if there is
        one."""
        first = self.context.folder.model("start")
        return first, None if self.start == first else self.start.with_name("adapter")

    def _model(self, stage: str | None) -> Any:
        """Load the model of an earlier stage, or the one that the stage starts from."""
        return self._read(self.start if stage is None else self.context.folder.model(stage))

    def _read(self, folder: Path) -> Any:
        return load_model(folder, self.context.device, self.recipe.dtype)


@dataclass
class RankedMaterial(StageMaterial):
    """The same with everything that is trained, or read beside it, on ranks."""

    ranks: RayRanks

    def trainer(self, optim: Optim, steps: int) -> Learning:
        lora, dtype = self.recipe.lora, self.recipe.dtype
        if lora is None:
            spec = PolicySpec(folder=self.start.absolute(), optim=optim, steps=steps, dtype=dtype)
            return ShardedTrainer(self.ranks, spec)
        first, last = self._first_and_last
        return ShardedTrainer(
            self.ranks,
            PolicySpec(
                folder=first.absolute(),
                optim=optim,
                steps=steps,
                dtype=dtype,
                lora=lora,
                seed=self.seed,
                adapter=last and last.absolute(),
            ),
        )

    def reader(self, stage: str | None, optim: Optim) -> Reference:
        folder = self.start if stage is None else self.context.folder.model(stage)
        return self._reader("reference", folder, optim)

    def checkpoint(self, folder: Path, optim: Optim) -> Reference:
        require_tokenizer(folder, self.dialect.tokenizer)
        return self._reader("teacher", folder, optim)

    def critic(self, settings: Rl, trainer: Learning) -> Valuing:
        assert isinstance(trainer, ShardedTrainer)
        return ShardedCritic(
            self.ranks,
            CriticSpec(
                settings=settings.critic,
                optim=settings.optim,
                steps=settings.steps,
                policy=trainer.name,
                folder=self.start.absolute(),
                dtype=self.recipe.dtype,
            ),
        )

    def engine(self, trainer: Learning) -> PolicyEngine:
        assert isinstance(trainer, ShardedTrainer)
        model = empty_model(self.start)
        if (self.start / GENERATION_CONFIG_NAME).exists():  # says what ends a sequence
            model.generation_config = GenerationConfig.from_pretrained(self.start)
        source = OnRanks(self.ranks, trainer, model.config)
        return self.context.engine(model, self.dialect, source)

    def _reader(self, name: str, folder: Path, optim: Optim) -> Reference:
        spec = ReaderSpec(folder=folder.absolute(), optim=optim, dtype=self.recipe.dtype)
        return make_reader(self.ranks, name, spec)
