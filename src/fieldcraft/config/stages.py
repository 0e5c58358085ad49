"""Settings of the stages of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fieldcraft.config.budgets import BudgetPeriod
from fieldcraft.config.filters import Filters
from fieldcraft.config.sections import (
    BudgetConfig,
    ConfigSection,
    EndpointConfig,
    NonNegativeNumber,
    Optim,
)

StageKind = Literal["supervised", "rl"]


@dataclass(frozen=True, slots=True)
class MemoryFootprint:
    """Memory of a stage beside the model that it trains: how many models of its size are trained
    with it, how many are only read (those that simulate sample too; a reference is the model as the
    stage begins), how many rollouts have their keys and values kept, and how many copies of a
    piece's logits there are beside the usual ones. With `concurrent_sampling`, it trains while a
    copy of the model samples."""

    critics: int = 0
    frozen_simulators: int = 0
    references: int = 0
    teachers: int = 0
    rollouts: int = 0
    logit_copies: int = 0
    concurrent_sampling: bool = False


class Stage(ConfigSection):
    """Settings that every stage of training has. The settings of a stage type are a subclass with
    its keys.

    The properties tell what others need to know of a stage without knowing its type.
    """

    kind: ClassVar[StageKind] = "supervised"  # how tables group it

    type: str
    start_from: str | None = None  # a stage, or `start`, the first model; None: the last stage
    optim: Optim
    checkpoint_every: PositiveInt = 25
    # so many of the newest stay, also when the stage is done; None: only what resuming needs
    keep_checkpoints: Annotated[int, Field(gt=0, strict=True)] | Literal["all"] | None = None
    evaluate: bool = True  # a row in the report

    @property
    def trained_authors(self) -> tuple[str, ...]:
        """Authors whose tokens are trained; see `types.Author`."""
        return ("policy",)

    @property
    def reward_names(self) -> set[str]:
        """Rewards that grade every rollout, and the one that tells which answers are right."""
        return set()

    @property
    def stage_dependencies(self) -> tuple[str, ...]:
        """Other stages whose models it reads."""
        return ()

    @property
    def endpoints(self) -> tuple[EndpointConfig, ...]:
        """Remote models that it asks."""
        return ()

    @property
    def steps_by_observation_mode(self) -> dict[str, int]:
        """Number of steps that it samples with real, simulated or mixed observations."""
        return {}

    @property
    def simulation_temperatures(self) -> tuple[float, float] | None:
        """Temperatures of the policy and of its simulator where observations are simulated; None
        where they never are."""
        return None

    @property
    def memory_footprint(self) -> MemoryFootprint:
        return MemoryFootprint()

    def budget_periods(self, budget: BudgetConfig) -> tuple[BudgetPeriod, ...]:
        """Return the budgets of the rollouts of a stage that samples, in their order, made of that
        of the recipe; at least one."""
        return ()


class SupervisedConfig(Stage):
    """A stage over a data set, as long as `steps` or `epochs` says."""

    dataset: str
    max_examples: PositiveInt | None = None  # at most; None: as many as the data set has
    batch_size: PositiveInt = 16  # trajectories, or pairs
    steps: PositiveInt | None = None
    epochs: PositiveFloat | None = None

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("a supervised stage has either steps or epochs: give one of them")
        return self

    def count_steps(self, num_examples: int) -> int:
        """Return the number of steps of the stage with so many examples."""
        return self.steps or ceil((self.epochs or 1.0) * num_examples / self.batch_size)


class Sft(SupervisedConfig):
    """Supervised fine-tuning on trajectories. `train_on` names whose tokens are trained, `filters`
    the rules that choose the examples."""

    type: str = "sft"
    train_on: tuple[Literal["policy", "tool"], ...] = ("policy",)
    filters: Filters = Field(default={})  # of the examples

    @property
    def trained_authors(self) -> tuple[str, ...]:
        return self.train_on


class Contrastive(SupervisedConfig):
    """Step-level contrastive training: chosen against rejected steps."""

    type: str = "contrastive"
    alpha: NonNegativeNumber = 0.2
