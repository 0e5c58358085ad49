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
from fieldcraft.records.events import Sink
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.rollout.environments import Play
from fieldcraft.train.learning import Learning, Reference, Valuing
from fieldcraft.train.watch import Watch
from fieldcraft.types import Dialect, Task, Trajectory

Row = dict[str, Any]
Pair = tuple[Trajectory, Trajectory]  # chosen, rejected; both begin with the same shared prefix


class Data(Protocol):
    """The data of a run, in its dialect. `check` offers the first examples of it."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def dialect(self) -> Dialect: ...

    def trajectories(self, data: str, count: int | None) -> Sequence[Trajectory]:
        """Return at most `count` demonstrations of a data set. Raises UserError if there is
        none."""
        ...

    def filtered(self, data: str, count: int | None, filters: Filters) -> Sequence[Trajectory]:
        """Return the demonstrations that filters leave of at most `count` of them. Raises UserError
        if that is nothing."""
        ...

    def pairs(self, data: str, count: int | None) -> Sequence[Pair]: ...

    def training_questions(self) -> Sequence[Task]: ...

    def plan(self, task: Task) -> str:
        """Return a way to the answer of a question, in words. Raises UserError where none is
        known."""
        ...


class Material(Data, Protocol):
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
    def emit(self) -> Sink: ...

    @property
    def threads_beside_sampling(self) -> int:
        """Threads of a CPU, for training while the engine samples."""
        ...

    def trainer(self, optim: Optim, steps: int) -> Learning:
        """Make a trainer on the model that the stage starts from: all its weights, or an
        adapter."""
        ...

    def reader(self, stage: str | None, optim: Optim) -> Reference:
        """Make a model to read: that of an earlier stage, or a second copy of the one that the
        stage starts from (None), in the type of weights that are only read."""
        ...

    def checkpoint(self, folder: Path, optim: Optim) -> Reference:
        """Make a model of another origin to read, in the same type. Raises UserError for one that
        has another tokenizer."""
        ...

    def critic(self, settings: Rl, trainer: Learning) -> Valuing:
        """Make a critic on the model of the trainer, or on a second copy of the one that the stage
        starts from."""
        ...

    def environment(self) -> ToolEnvironment:
        """Return an environment with the tools of the recipe."""
        ...

    @property
    def play(self) -> Play | None:
        """Player of rollouts in an environment of others; None where they are played with the tools
        of the recipe."""
        ...

    def engine(self, trainer: Learning) -> PolicyEngine:
        """Make an engine that samples from what is trained."""
        ...

    def frozen_engine(self, stage: str | None) -> PolicyEngine:
        """Make an engine that samples from the model of an earlier stage, or from the one that the
        stage starts from (None)."""
        ...

    def rubric(self, settings: Rl) -> Rubric: ...

    def fidelity(self, trajectories: Sequence[Trajectory]) -> Row:
        """Measure how true simulated observations are, as metrics; empty where it cannot be
        told."""
        ...


class StageType(ABC):
    """One stage while it runs. `train/loop.py` calls `step` for every step that no checkpoint has
    behind it, and keeps metrics and checkpoints.

    A step is a function of its number, the weights and `state_dict` alone, so that a run that was
    killed and resumed ends with the same numbers.
    """

    Settings: ClassVar[type[Stage]]  # the keys of a recipe
    trainer: Learning
    watch: Watch | None = None  # what stops it when it has collapsed
    engine: PolicyEngine | None = None  # that samples from the model as the last step left it

    @classmethod
    @abstractmethod
    async def open(cls, settings: Any, material: Material) -> Self:
        """Make the stage from what a run has. Raises UserError where something is missing."""

    @abstractmethod
    async def step(self, number: int) -> Row:
        """Run step `number`, counted from 0, and return its metrics, `tokens` among them: how many
        were computed."""

    def idle(self, row: Row) -> str | None:
        """Return the reason why the step of these metrics had not one token to train, and what to
        do about it; None where it had some. A stage that is idle for too long is stopped."""
        return None

    def notice(self, rows: Sequence[Row]) -> str | None:
        """Return a message for the reader after the last of these steps, which are all so far; None
        where there is nothing to say."""
        return None

    def state_dict(self) -> Row:
        """Return the state that a checkpoint keeps beside the trainer."""
        return {}

    def load_state_dict(self, state: Row) -> None:
        """Take over what `state_dict` returned. Raises ValueError for the state of another."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but was given {state}")

    async def close(self) -> None:  # noqa: B027 - most stages open nothing
        """Close what `open` opened. It is called when the stage has ended, however it did."""

    @classmethod
    def problems(cls, settings: Any, name: str, data: Data, notes: list[str]) -> Iterator[str]:
        """Yield the problems that would come up, a sentence each; what was looked at goes to
        `notes`."""
        yield from ()
