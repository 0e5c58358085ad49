"""Base class of stage types, and protocols of their inputs.

Each built-in type has a file in this folder; user-defined types are specified as `module:Name` and
treated the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from fieldcraft.config.choices import Filters
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import Optim
from fieldcraft.config.stages import Stage
from fieldcraft.dialects.encoding import TrajectoryPair
from fieldcraft.engine.base import PolicyEngine
from fieldcraft.environments.base import OpenEnvironment
from fieldcraft.environments.turns import Policy
from fieldcraft.records.events import EventHandler
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.train.collapse_detector import CollapseDetector
from fieldcraft.train.protocols import ReferenceModel, TrainablePolicy, ValueModel
from fieldcraft.types import Dialect, Task, Trajectory

StepMetrics = dict[str, Any]


class StageData(Protocol):
    """Data of a run, in its dialect. `check` provides only the first examples."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def dialect(self) -> Dialect: ...

    def load_trajectories(self, data: str, count: int | None) -> Sequence[Trajectory]:
        """Return at most `count` demonstrations of a data set. Raises UserError if there are
        none."""
        ...

    def load_filtered(self, data: str, count: int | None, filters: Filters) -> Sequence[Trajectory]:
        """Return the demonstrations, among the first `count`, that pass the filters. Raises
        UserError if there are none."""
        ...

    def load_pairs(self, data: str, count: int | None) -> Sequence[TrajectoryPair]: ...

    def load_training_tasks(self) -> Sequence[Task]: ...

    def render_plan(self, task: Task) -> str:
        """Return a plan for answering a question, as text. Raises UserError if none is known."""
        ...


class StageInputs(StageData, Protocol):
    """Inputs from which a run creates a stage."""

    @property
    def name(self) -> str:
        """Name of the stage."""
        ...

    @property
    def seed(self) -> int:
        """Seed of the stage: no two stages of a run draw the same questions and rollouts."""
        ...

    @property
    def folder(self) -> Path:
        """Folder for the files of the stage."""
        ...

    @property
    def emit(self) -> EventHandler: ...

    @property
    def threads_while_sampling(self) -> int:
        """Number of CPU threads for training while the engine samples."""
        ...

    def make_trainer(self, optim: Optim, steps: int) -> TrainablePolicy:
        """Make a trainer of the model that the stage starts from: all its weights, or an
        adapter."""
        ...

    def make_reference(self, stage: str | None, optim: Optim) -> ReferenceModel:
        """Make a read-only model: the model of an earlier stage, or a second copy of the one that
        the stage starts from (None), in the dtype of read-only weights."""
        ...

    def load_external_model(self, folder: Path, optim: Optim) -> ReferenceModel:
        """Make a read-only model from a folder outside the run, in the same dtype. Raises UserError
        if its tokenizer differs."""
        ...

    def make_critic(self, settings: Rl, trainer: TrainablePolicy) -> ValueModel:
        """Make a critic on the trainer's model, or on a second copy of the model that the stage
        starts from."""
        ...

    @property
    def environment(self) -> OpenEnvironment[Policy]:
        """Environment of the recipe, within the budget of the first step."""
        ...

    def make_engine(self, trainer: TrainablePolicy) -> PolicyEngine:
        """Make an engine that samples from the trained policy."""
        ...

    def make_frozen_engine(self, stage: str | None) -> PolicyEngine:
        """Make an engine that samples from the model of an earlier stage, or from the model that
        the stage starts from (None)."""
        ...

    def make_rubric(self, settings: Rl) -> Rubric: ...

    def measure_judging(self) -> StepMetrics:
        """Return what judges have cost since the last call, as metrics; empty without requests."""
        ...

    def measure_fidelity(self, trajectories: Sequence[Trajectory]) -> StepMetrics:
        """Measure the fidelity of simulated observations, as metrics; empty if it cannot be
        measured."""
        ...


class TrainingStage(ABC):
    """Running stage. `train/loop.py` calls `step` for every step after the newest checkpoint, and
    writes metrics and checkpoints.

    A step depends only on its number, the weights and `state_dict`, so that a run that was killed
    and resumed gives the same results.
    """

    Settings: ClassVar[type[Stage]]  # its keys in a recipe
    trainer: TrainablePolicy
    collapse_detector: CollapseDetector | None = None  # stops the stage after a collapse
    engine: PolicyEngine | None = None  # samples from the model after the last step

    @classmethod
    @abstractmethod
    async def create(cls, settings: Any, inputs: StageInputs) -> Self:
        """Make the stage from the inputs of a run. Raises UserError if something is missing."""

    @abstractmethod
    async def step(self, number: int) -> StepMetrics:
        """Run step `number`, counted from 0, and return its metrics, including `tokens`, the number
        of computed tokens."""

    def explain_idle(self, row: StepMetrics) -> str | None:
        """Return the reason, with advice, why the step with these metrics had no trainable token;
        None if it had some. A stage that is idle for too long is stopped."""
        return None

    def make_log_message(self, rows: Sequence[StepMetrics]) -> str | None:
        """Return a log message for the user after the last of these rows, which are all so far;
        None if there is none."""
        return None

    def state_dict(self) -> StepMetrics:
        """Return the state of the stage for a checkpoint, in addition to the trainer's."""
        return {}

    def load_state_dict(self, state: StepMetrics) -> None:
        """Restore the state that `state_dict` returned. Raises ValueError if the state belongs to
        another type."""
        if state:
            raise ValueError(f"{type(self).__name__} is stateless, but received {state}")

    async def close(self) -> None:  # noqa: B027 - most stages open nothing
        """Close the resources that `create` opened. It is called when the stage ends for any
        reason."""

    @classmethod
    def check(cls, settings: Any, name: str, data: StageData, notes: list[str]) -> Iterator[str]:
        """Yield an error message for each problem that would occur; notes on the checked data are
        appended to `notes`."""
        yield from ()
