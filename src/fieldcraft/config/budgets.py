"""Budgets that change while a stage trains, such as a context that grows (a length curriculum)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, PositiveInt

from fieldcraft.config.base import ConfigSection
from fieldcraft.config.sections import BudgetConfig, find_invalid_budget_keys


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


def make_budget_periods(
    configs: Sequence[BudgetPeriodConfig], budget: BudgetConfig, steps: int
) -> tuple[BudgetPeriod, ...]:
    """Return the budget periods of a stage with `steps` steps, from the budget of the recipe.

    Raises ValueError for a period that would start after the last step, and for inconsistent
    budgets.
    """
    built, start = list[BudgetPeriod](), 0
    for config in configs or (BudgetPeriodConfig(),):
        if start >= steps:
            raise ValueError(
                f"its budget changes after step {start}, but the stage has only {steps} steps"
            )
        end = steps if config.until is None else config.until
        built.append(BudgetPeriod(start, min(end, steps), budget.with_changes(config.changes)))
        start = end
    return tuple(built)
