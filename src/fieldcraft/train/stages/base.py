"""The type of a stage.

The built-in ones are beside this file, one each; a user's own is found as `module:Name` and is
treated the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from fieldcraft.config.filters import Filters
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import Optim
from fieldcraft.config.stages import Stage
from fieldcraft.engine.base import PolicyEngine
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.records.events import EventHandler
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.rollout.environments import EnvironmentRunner
from fieldcraft.train.collapse_detector import CollapseDetector
from fieldcraft.train.protocols import ReferenceModel, TrainablePolicy, ValueModel
from fieldcraft.types import Dialect, Task, Trajectory

StepMetrics = dict[str, Any]
PreferencePair = tuple[
    Trajectory, Trajectory
]  # chosen, rejected; both begin with the same shared prefix


class StageData(Protocol):
    """The data of a run, in its dialect. `check` offers the first examples of it."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def dialect(self) -> Dialect: ...

    def load_trajectories(self, data: str, count: int | None) -> Sequence[Trajectory]:
        """Return at most `count` demonstrations of a data set. Raises UserError if there is
        none."""
        ...

    def load_filtered(self, data: str, count: int | None, filters: Filters) -> Sequence[Trajectory]:
        """Return the demonstrations that filters leave of at most `count` of them. Raises UserError
        if that is nothing."""
        ...

    def load_pairs(self, data: str, count: int | None) -> Sequence[PreferencePair]: ...

    def load_training_tasks(self) -> Sequence[Task]: ...

    def render_plan(self, task: Task) -> str:
        """Return a way to the answer of a question, in words. Raises UserError where none is
        known."""
        ...


class StageInputs(StageData, Protocol):
    """The things that a run gives a stage to be made of."""

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
        """Folder of the stage, for what it keeps there."""
        ...

    @property
    def emit(self) -> EventHandler: ...

    @property
    def threads_while_sampling(self) -> int:
        """Threads of a CPU, for training while the engine samples."""
        ...

    def make_trainer(self, optim: Optim, steps: int) -> TrainablePolicy:
        """Make a trainer on the model that the stage starts from: all its weights, or an
        adapter."""
        ...

    def make_reference(self, stage: str | None, optim: Optim) -> ReferenceModel:
        """Make a model to read: that of an earlier stage, or a second copy of the one that the
        stage starts from (None), in the type of weights that are only read."""
        ...

    def load_external_model(self, folder: Path, optim: Optim) -> ReferenceModel:
        """Make a model of another origin to read, in the same type. Raises UserError for one that
        has another tokenizer."""
        ...

    def make_critic(self, settings: Rl, trainer: TrainablePolicy) -> ValueModel:
        """Make a critic on the model of the trainer, or on a second copy of the one that the stage
        starts from."""
        ...

    def make_environment(self) -> ToolEnvironment:
        """Return an environment with the tools of the recipe."""
        ...

    @property
    def runner(self) -> EnvironmentRunner | None:
        """Runner of rollouts in an external environment; None where they use the tools of the
        recipe."""
        ...

    def make_engine(self, trainer: TrainablePolicy) -> PolicyEngine:
        """Make an engine that samples from what is trained."""
        ...

    def make_frozen_engine(self, stage: str | None) -> PolicyEngine:
        """Make an engine that samples from the model of an earlier stage, or from the one that the
        stage starts from (None)."""
        ...

    def make_rubric(self, settings: Rl) -> Rubric: ...

    def measure_fidelity(self, trajectories: Sequence[Trajectory]) -> StepMetrics:
        """Measure how true simulated observations are, as metrics; empty where it cannot be
        told."""
        ...


class TrainingStage(ABC):
    """One stage while it runs. `train/loop.py` calls `step` for every step that no checkpoint has
    behind it, and keeps metrics and checkpoints.

    A step is a function of its number, the weights and `state_dict` alone, so that a run that was
    killed and resumed ends with the same numbers.
    """

    Settings: ClassVar[type[Stage]]  # the keys of a recipe
    trainer: TrainablePolicy
    collapse_detector: CollapseDetector | None = None  # what stops it when it has collapsed
    engine: PolicyEngine | None = None  # that samples from the model as the last step left it

    @classmethod
    @abstractmethod
    async def create(cls, settings: Any, inputs: StageInputs) -> Self:
        """Make the stage from what a run has. Raises UserError where something is missing."""

    @abstractmethod
    async def step(self, number: int) -> StepMetrics:
        """Run step `number`, counted from 0, and return its metrics, `tokens` among them: how many
        were computed."""

    def explain_idle(self, row: StepMetrics) -> str | None:
        """Return the reason why the step of these metrics had not one token to train, and what to
        do about it; None where it had some. A stage that is idle for too long is stopped."""
        return None

    def make_log_message(self, rows: Sequence[StepMetrics]) -> str | None:
        """Return a message for the reader after the last of these steps, which are all so far; None
        where there is nothing to say."""
        return None

    def state_dict(self) -> StepMetrics:
        """Return the state that a checkpoint keeps beside the trainer."""
        return {}

    def load_state_dict(self, state: StepMetrics) -> None:
        """Take over what `state_dict` returned. Raises ValueError for the state of another."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but was given {state}")

    async def close(self) -> None:  # noqa: B027 - most stages open nothing
        """Close what `create` opened. It is called when the stage has ended, however it did."""

    @classmethod
    def check(cls, settings: Any, name: str, data: StageData, notes: list[str]) -> Iterator[str]:
        """Yield the problems that would come up, a sentence each; what was looked at goes to
        `notes`."""
        yield from ()
