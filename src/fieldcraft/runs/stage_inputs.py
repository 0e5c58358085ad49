"""Inputs of a stage of a run, in this process or with trainers in others."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fieldcraft.config.choices import Filters
from fieldcraft.config.names import import_object
from fieldcraft.config.plan import FILTER_DEMONSTRATIONS, WRITE_FILTERED
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import Optim
from fieldcraft.data.sample_tallies import TRAINING, add_closed_book_rates
from fieldcraft.data.steps_io import read_demonstrations
from fieldcraft.dialects.encoding import DemonstrationEncoder, TrajectoryPair
from fieldcraft.engine.base import PolicyEngine
from fieldcraft.environments.base import OpenEnvironment
from fieldcraft.environments.turns import Policy
from fieldcraft.evaluation.fidelity import compute_fidelity_metrics
from fieldcraft.records.events import EventHandler, LogMessage
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.runs.build import make_program_runner, make_rubric
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.sources import DataSource
from fieldcraft.runs.stage_files import DEMONSTRATIONS_FILE
from fieldcraft.train.critic import Critic
from fieldcraft.train.lora import load_policy
from fieldcraft.train.model import load_model, require_tokenizer, to_torch_dtype
from fieldcraft.train.protocols import ReferenceModel, TrainablePolicy, ValueModel
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Dialect, Task, Trajectory, UserError

T = TypeVar("T")


@dataclass
class LocalStageInputs:
    """Inputs (`train.stages.base.StageInputs`) of one stage of a run."""

    context: RunContext
    name: str
    start_model: Path
    dialect: Dialect
    environment: OpenEnvironment[Policy]

    def __post_init__(self) -> None:
        self.recipe: Recipe = self.context.recipe
        self.data_source: DataSource = self.context.data_source
        self.encoder = DemonstrationEncoder(self.dialect, self.context.schemas)
        self.emit: EventHandler = self.context.emit
        self.seed = zlib.crc32(f"{self.recipe.seed}:{self.name}".encode())
        self.folder: Path = self.context.folder.stage(self.name).path

    def load_trajectories(self, data: str, count: int | None) -> Sequence[Trajectory]:
        return self._require_examples(data, self.data_source.encoded(data, count, self.encoder))

    def load_filtered(self, data: str, count: int | None, filters: Filters) -> Sequence[Trajectory]:
        """Return the demonstrations that pass the filters. Filtering is done once, and its results
        are written to the folder `data` of the stage, with the data card."""

        def make(folder: Path) -> None:
            demonstrations = self.data_source.demonstrations(data, count)
            self._log_notes()
            result = import_object(FILTER_DEMONSTRATIONS)(
                self.recipe, demonstrations, filters, self.dialect, self.context.verdict_reward
            )
            title = f"{self.recipe.name}, stage {self.name}"
            import_object(WRITE_FILTERED)(folder, title, demonstrations, result, self.recipe)

        folder = self.context.folder.make_once(f"{self.name}/data", make)
        demonstrations = read_demonstrations(folder / DEMONSTRATIONS_FILE)
        if not demonstrations:
            raise self._empty_error(data)
        return self.data_source.encode_filtered(data, demonstrations, self.encoder)

    def load_pairs(self, data: str, count: int | None) -> Sequence[TrajectoryPair]:
        return self._require_examples(data, self.data_source.pairs(data, count, self.encoder))

    def _require_examples(self, data: str, found: Sequence[T]) -> Sequence[T]:
        """Return the examples that were just read, and log the notes on them."""
        self._log_notes()
        if not found:
            raise self._empty_error(data)
        return found

    def _log_notes(self) -> None:
        for note in self.data_source.notes:
            self.emit(LogMessage(f"stage {self.name}: {note}"))

    def _empty_error(self, data: str) -> UserError:
        return UserError(
            f"the data set '{data}' of stage '{self.name}' is empty: give it examples, let its"
            " filters keep some, or remove the stage."
        )

    def load_training_tasks(self) -> Sequence[Task]:
        """Return the questions of reinforcement learning, selected ones or all, with their
        closed-book rates once measured."""
        context, selected = self.context, self.context.selected_tasks
        tasks = context.data_source.train_tasks() if selected is None else selected
        return add_closed_book_rates(tasks, context.closed_book_tallies.get(TRAINING, {}))

    def render_plan(self, task: Task) -> str:
        return self.data_source.plan(task, self.dialect)

    @property
    def threads_while_sampling(self) -> int:
        return self.context.threads.training_while_sampling

    def make_trainer(self, optim: Optim, steps: int) -> TrainablePolicy:
        """Return a trainer of all weights of the model, or of an adapter on the run's first model
        that continues the adapter of the previous stage.

        Merging the previous adapter into the weights instead would lose updates below their
        precision: in bfloat16, anything below a 256th of a weight.
        """
        lora, dtype, device = self.recipe.lora, self.recipe.dtype, self.context.device
        folder, last_adapter = self._base_and_adapter
        model, adapter = load_policy(folder, dtype, lora, self.seed, last_adapter, device)
        return Trainer(
            model, optim, steps, adapter, None if adapter is not None else to_torch_dtype(dtype)
        )

    def make_reference(self, stage: str | None, optim: Optim) -> ReferenceModel:
        return Trainer(self._load_stage_model(stage), optim, 1)

    def load_external_model(self, folder: Path, optim: Optim) -> ReferenceModel:
        require_tokenizer(folder, self.dialect.tokenizer)
        return Trainer(self._load_frozen_model(folder), optim, 1)

    def make_critic(self, settings: Rl, trainer: TrainablePolicy) -> ValueModel:
        assert isinstance(trainer, Trainer)
        is_separate = settings.critic.backbone == "separate"
        model = load_model(self.start_model, self.context.device) if is_separate else trainer.model
        dtype = to_torch_dtype(self.recipe.dtype)
        return Critic(model, settings.critic, settings.optim, settings.steps, dtype)

    def make_engine(self, trainer: TrainablePolicy) -> PolicyEngine:
        assert isinstance(trainer, Trainer)
        return self.context.make_engine(trainer.model, self.dialect)

    def make_frozen_engine(self, stage: str | None) -> PolicyEngine:
        return self.context.make_engine(self._load_stage_model(stage).eval(), self.dialect)

    def make_rubric(self, settings: Rl) -> Rubric:
        recipe = self.recipe
        return make_rubric(
            settings,
            recipe.budget,
            self.context.judge,
            recipe.verdict_reward,
            make_program_runner(recipe),
            recipe.max_call_cost,
            self.context.criteria,
        )

    def measure_judging(self) -> StepMetrics:
        return self.context.read_judging()

    def measure_fidelity(self, trajectories: Sequence[Trajectory]) -> StepMetrics:
        world = self.data_source.world
        return (
            {} if world is None else compute_fidelity_metrics(world.judge_simulations, trajectories)
        )

    @property
    def _base_and_adapter(self) -> tuple[Path, Path | None]:
        """Folders of the model that a trainer loads, and of the adapter of the previous stage on
        it, if any. An adapter stays on the run's first model."""
        if self.recipe.lora is None:
            return self.start_model, None
        base = self.context.folder.model("start")
        return base, None if self.start_model == base else self.start_model.with_name("adapter")

    def _load_stage_model(self, stage: str | None) -> Any:
        """Load the model of an earlier stage, or the model that the stage starts from."""
        return self._load_frozen_model(
            self.start_model if stage is None else self.context.folder.model(stage)
        )

    def _load_frozen_model(self, folder: Path) -> Any:
        return load_model(folder, self.context.device, self.recipe.dtype)
