"""Settings of the stages of a recipe.

The budget of a stage may change while it trains, such as a context that grows (a length
curriculum).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PositiveFloat, PositiveInt

from fieldcraft.config.base import ConfigSection
from fieldcraft.config.choices import Filters
from fieldcraft.config.numbers import NonNegativeNumber
from fieldcraft.config.sections import (
    BudgetConfig,
    EndpointConfig,
    Optim,
    find_invalid_budget_keys,
)

StageKind = Literal["supervised", "rl"]
RETRIEVED_DATASET = "retrieved"  # data set that the search of a run makes from its questions


@dataclass(frozen=True, slots=True)
class MemoryFootprint:
    """Memory of a stage in addition to the trained model.

    `critics` are models of the same size that are trained with it. `frozen_simulators`,
    `references` and `teachers` are only read; simulators also sample, and a reference is the model
    at the start of the stage. `rollouts` is the number of rollouts with cached keys and values, and
    `logit_copies` the number of additional copies of a chunk's logits. With `concurrent_sampling`,
    the stage trains while a copy of the model samples.
    """

    critics: int = 0
    frozen_simulators: int = 0
    references: int = 0
    teachers: int = 0
    rollouts: int = 0
    logit_copies: int = 0
    concurrent_sampling: bool = False


class Stage(ConfigSection):
    """Settings that all training stages have. The settings of a stage type are a subclass with its
    keys.

    The properties describe a stage to code that does not know its type.
    """

    kind: ClassVar[StageKind] = "supervised"  # group in tables

    type: str
    start_from: str | None = None  # a stage, or `start`, the first model; None: the last stage
    optim: Optim
    checkpoint_every: PositiveInt = 25
    # number of newest checkpoints to keep, also after the stage; None: only for resuming
    keep_checkpoints: Annotated[int, Field(gt=0, strict=True)] | Literal["all"] | None = None
    evaluate: bool = True  # a row in the report

    @property
    def trained_authors(self) -> tuple[str, ...]:
        """Authors whose tokens are trained; see `types.Author`."""
        return ("policy",)

    @property
    def reward_names(self) -> set[str]:
        """Rewards that grade every rollout, including the verdict reward."""
        return set()

    @property
    def stage_dependencies(self) -> tuple[str, ...]:
        """Other stages whose models this stage reads."""
        return ()

    @property
    def endpoints(self) -> tuple[EndpointConfig, ...]:
        """Remote models that this stage uses."""
        return ()

    @property
    def steps_by_observation_mode(self) -> dict[str, int]:
        """Numbers of steps with real, simulated or mixed observations."""
        return {}

    @property
    def simulation_temperatures(self) -> tuple[float, float] | None:
        """Temperatures of the policy and of its simulator for simulated observations; None if
        observations are never simulated."""
        return None

    @property
    def memory_footprint(self) -> MemoryFootprint:
        return MemoryFootprint()

    def budget_periods(self, budget: BudgetConfig) -> tuple[BudgetPeriod, ...]:
        """Return the budgets of the rollouts of a sampling stage in order, at least one, from the
        budget of the recipe."""
        return ()


class SupervisedConfig(Stage):
    """A stage on a data set, for a number of `steps` or `epochs`."""

    dataset: str
    max_examples: PositiveInt | None = None  # None: the whole data set
    batch_size: PositiveInt = 16  # trajectories or pairs
    steps: PositiveInt | None = None
    epochs: PositiveFloat | None = None

    def find_violations(self) -> Iterator[str]:
        if (self.steps is None) == (self.epochs is None):
            yield "a supervised stage has either steps or epochs: give one of them"

    def count_steps(self, num_examples: int) -> int:
        """Return the number of steps of the stage for a number of examples."""
        return self.steps or ceil((self.epochs or 1.0) * num_examples / self.batch_size)


class Sft(SupervisedConfig):
    """Supervised fine-tuning on trajectories. `train_on` names the authors of the trained tokens,
    and `filters` the rules that select the examples."""

    type: str = "sft"
    train_on: tuple[Literal["policy", "tool"], ...] = ("policy",)
    filters: Filters = Field(default={})  # of the examples

    @property
    def trained_authors(self) -> tuple[str, ...]:
        return self.train_on


class Contrastive(SupervisedConfig):
    """Step-level contrastive training on chosen and rejected steps."""

    type: str = "contrastive"
    alpha: NonNegativeNumber = 0.2


# -- budgets that change -----------------------------------------------------------------------


class BudgetPeriodConfig(ConfigSection):
    """Changed keys of the recipe's budget, up to a step or to the end of a stage."""

    model_config = ConfigDict(extra="allow")

    until: PositiveInt | None = None  # in steps; None: to the end of the stage

    def find_violations(self) -> Iterator[str]:
        yield from find_invalid_budget_keys(self.changes)

    @property
    def changes(self) -> dict[str, Any]:
        return self.model_extra or {}


def _wrap_single(given: Any) -> Any:
    return [given] if isinstance(given, Mapping) else given


def _validate_order(configs: tuple[BudgetPeriodConfig, ...]) -> tuple[BudgetPeriodConfig, ...]:
    untils = [config.until for config in configs]
    if any(until is not None for until in untils[-1:]):
        raise ValueError("the last budget of a stage lasts to its end: remove its `until`")
    if None in untils[:-1]:
        raise ValueError("each budget of a stage except the last needs `until`, a number of steps")
    if any(before >= after for before, after in pairwise(u for u in untils if u is not None)):
        raise ValueError("each budget of a stage must end after the previous one: raise its until")
    return configs


StageBudget = Annotated[
    tuple[BudgetPeriodConfig, ...],
    BeforeValidator(_wrap_single),
    AfterValidator(_validate_order),
]


@dataclass(frozen=True, slots=True)
class BudgetPeriod:
    """Steps of a stage from `start_step` (inclusive) to `end_step` (exclusive), and the budget of
    their rollouts."""

    start_step: int
    end_step: int
    budget: BudgetConfig
