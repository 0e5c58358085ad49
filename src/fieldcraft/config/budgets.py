"""Budgets that change while a stage trains, such as a context that grows (a length curriculum)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, PositiveInt, model_validator

from fieldcraft.config.sections import Limits, Section, require_changes


class BudgetPart(Section):
    """Keys of the recipe's budget that are other ones up to a step, or to the end of a stage."""

    model_config = ConfigDict(extra="allow")

    until: PositiveInt | None = None  # so many steps; None: to the end of the stage

    @model_validator(mode="after")
    def _changes_a_rollout(self) -> Self:
        require_changes(self.changes)
        return self

    @property
    def changes(self) -> dict[str, Any]:
        return self.model_extra or {}


def _one_or_several(given: Any) -> Any:
    return [given] if isinstance(given, Mapping) else given


def _follow_one_another(parts: tuple[BudgetPart, ...]) -> tuple[BudgetPart, ...]:
    untils = [part.until for part in parts]
    if any(until is not None for until in untils[-1:]):
        raise ValueError("the last budget of a stage lasts to its end, so remove its `until`")
    if None in untils[:-1]:
        raise ValueError("each budget of a stage but the last needs `until`, a number of steps")
    if any(before >= after for before, after in pairwise(u for u in untils if u is not None)):
        raise ValueError("each budget of a stage lasts longer than the one before: raise its until")
    return parts


StageBudget = Annotated[
    tuple[BudgetPart, ...],
    BeforeValidator(_one_or_several),
    AfterValidator(_follow_one_another),
]


@dataclass(frozen=True, slots=True)
class Period:
    """The steps from `begin` to before `end` of a stage, and the budget of their rollouts."""

    begin: int
    end: int
    limits: Limits


def periods(parts: Sequence[BudgetPart], budget: Limits, steps: int) -> tuple[Period, ...]:
    """Return the periods of a stage with so many steps, by the budget of the recipe. Raises
    ValueError for one that would begin after the last step, and for budgets that do not hold
    together."""
    found, begin = list[Period](), 0
    for part in parts or (BudgetPart(),):
        if begin >= steps:
            raise ValueError(f"its budget changes after step {begin}, and it has {steps} steps")
        end = steps if part.until is None else part.until
        found.append(Period(begin, min(end, steps), budget.changed(part.changes)))
        begin = end
    return tuple(found)
