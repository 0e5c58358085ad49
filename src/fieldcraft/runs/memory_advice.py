"""Which key of a recipe makes a run fit into memory, and with which value."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch

from fieldcraft.config.recipe import Recipe
from fieldcraft.config.stages import Stage

Estimate = Callable[["Sized"], int]


@dataclass
class Sized:
    """A recipe with what its estimates are made from (`runs.memory.Sizes`)."""

    recipe: Recipe
    device: torch.device
    config: Any
    parameters: int
    trained: int
    has_weights: bool = True


@dataclass(frozen=True)
class Fit:
    """A setting with which something fits, and the bytes that its key can save."""

    setting: str
    saved: int


def fitting_setting(sized: Sized, stage: str | None, estimate: Estimate, there: int) -> str | None:
    """Return the setting, as in "max_rows=3", with which `estimate` is at most `there` bytes: that
    of the key that saves most of those that only cost time, else a shorter text; None where no key
    is enough by itself. `stage` is None for an evaluation.
    """
    harmless = [_rows(sized, estimate, there)]
    if stage is not None:
        harmless += [_tokens(sized, stage, estimate, there), _anew(sized, stage, estimate, there)]
    fits = [fit for fit in harmless if fit is not None]
    fits = fits or [fit for fit in [_shorter(sized, estimate, there)] if fit is not None]
    return max(fits, key=attrgetter("saved")).setting if fits else None


def _largest(key: str, now: int, least: int, size: Callable[[int], int], there: int) -> Fit | None:
    """The largest value of a key, from `least` and below `now`, with which the size fits; it grows
    with the value."""
    values = range(least, now)
    fitting = bisect_right(values, there, key=size)
    return Fit(f"{key}={values[fitting - 1]}", size(now) - size(least)) if fitting else None


def _rows(sized: Sized, estimate: Estimate, there: int) -> Fit | None:
    def size(rows: int) -> int:
        return estimate(replace(sized, recipe=sized.recipe.model_copy(update={"max_rows": rows})))

    return _largest("max_rows", sized.recipe.max_rows, 1, size, there)


def _shorter(sized: Sized, estimate: Estimate, there: int) -> Fit | None:
    budget = sized.recipe.budget

    def size(tokens: int) -> int:
        shorter = budget.model_copy(update={"total_tokens": tokens})
        return estimate(replace(sized, recipe=sized.recipe.model_copy(update={"budget": shorter})))

    least = 2 * budget.turn_tokens  # a call and an answer
    return _largest("budget.total_tokens", budget.total_tokens, least, size, there)


def _tokens(sized: Sized, stage: str, estimate: Estimate, there: int) -> Fit | None:
    now = sized.recipe.stages[stage].optim.micro_tokens

    def size(tokens: int) -> int:
        return estimate(_with_optim(sized, stage, micro_tokens=tokens))

    return _largest(f"stages.{stage}.optim.micro_tokens", now, 1, size, there)


def _anew(sized: Sized, stage: str, estimate: Estimate, there: int) -> Fit | None:
    """Activations computed again in the backward pass."""
    less = estimate(_with_optim(sized, stage, activation_checkpointing=True))
    setting = f"stages.{stage}.optim.activation_checkpointing=true"
    return Fit(setting, estimate(sized) - less) if less <= there else None


def _with_optim(sized: Sized, stage: str, **keys: Any) -> Sized:
    settings: Stage = sized.recipe.stages[stage]
    changed = settings.model_copy(update={"optim": settings.optim.model_copy(update=keys)})
    stages = {**sized.recipe.stages, stage: changed}
    return replace(sized, recipe=sized.recipe.model_copy(update={"stages": stages}))
