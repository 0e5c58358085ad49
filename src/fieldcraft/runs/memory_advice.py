"""Keys of a recipe that make a run fit into memory, and their values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch

from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sections import Lora, Optim
from fieldcraft.config.stages import Stage
from fieldcraft.engine.sizes import feed_forward_width, key_value_heads
from fieldcraft.train.weights import adamw_type
from fieldcraft.types import UserError

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


Changing = Callable[["Sized"], "Sized"]


@dataclass(frozen=True)
class Fit:
    """A setting with which something fits, the bytes that its key can save, and what it changes."""

    setting: str
    saved: int
    change: Changing


def fitting_settings(sized: Sized, stage: str | None, estimate: Estimate, there: int) -> list[Fit]:
    """Return settings, as in "max_rows=3", with which `estimate` is at most `there` bytes: one if a
    key is enough by itself, else behind keys that only cost time, and behind these adapters and a
    smaller type. None of them can be left out. Empty where nothing is enough. `stage` is None for
    an evaluation.
    """
    steps: list[Fit] = []
    for step in (None, *_steps(sized, stage)):
        steps += [] if step is None else [step]
        changed = applied(sized, steps)
        last = fitting_setting(changed, stage, estimate, there)
        if estimate(changed) <= there or last is not None:
            return _needed(sized, [*steps, *([] if last is None else [last])], estimate, there)
    return []


def applied(sized: Sized, fits: Sequence[Fit]) -> Sized:
    """Return the recipe with settings."""
    for fit in fits:
        sized = fit.change(sized)
    return sized


def _needed(sized: Sized, fits: Sequence[Fit], estimate: Estimate, there: int) -> list[Fit]:
    """Return those of some settings without which nothing fits."""
    kept = list(fits)
    for fit in fits:
        others = [other for other in kept if other is not fit]
        if estimate(applied(sized, others)) <= there:
            kept = others
    return kept


def fitting_setting(sized: Sized, stage: str | None, estimate: Estimate, there: int) -> Fit | None:
    """Return the setting with which `estimate` is at most `there` bytes: that of the key that saves
    most of those that only cost time, else a shorter text; None where no key is enough by itself.
    """
    keys = [_rows(sized)] if stage is None else [_rows(sized), _tokens(sized, stage)]
    fits = [_largest(sized, key, estimate, there) for key in keys]
    fits += [_enough(sized, _anew(stage), estimate, there)] if stage is not None else []
    best = [fit for fit in fits if fit is not None]
    best = best or [f for f in [_largest(sized, _shorter(sized), estimate, there)] if f is not None]
    return max(best, key=attrgetter("saved")) if best else None


# -- keys whose values are searched


@dataclass(frozen=True)
class SearchedKey:
    """A key with what it is now, the least that it may be, and what a value of it changes."""

    name: str
    now: int
    least: int
    change: Callable[[int], Changing]


def _largest(sized: Sized, key: SearchedKey, estimate: Estimate, there: int) -> Fit | None:
    """Return the largest value of a key, from the least and below what it is, with which the
    estimate fits; it grows with the value."""

    def size(value: int) -> int:
        return estimate(key.change(value)(sized))

    values = range(key.least, key.now)
    fitting = bisect_right(values, there, key=size)
    if not fitting:
        return None
    value = values[fitting - 1]
    return Fit(f"{key.name}={value}", size(key.now) - size(key.least), key.change(value))


def _rows(sized: Sized) -> SearchedKey:
    return SearchedKey(
        "max_rows", sized.recipe.max_rows, 1, lambda rows: lambda s: _with(s, max_rows=rows)
    )


def _shorter(sized: Sized) -> SearchedKey:
    budget = sized.recipe.budget

    def change(tokens: int) -> Changing:
        shorter = budget.model_copy(update={"total_tokens": tokens})
        return lambda s: _with(s, budget=shorter)

    least = 2 * budget.turn_tokens  # a call and an answer
    return SearchedKey("budget.total_tokens", budget.total_tokens, least, change)


def _tokens(sized: Sized, stage: str) -> SearchedKey:
    now = sized.recipe.stages[stage].optim.micro_tokens
    name = f"stages.{stage}.optim.micro_tokens"
    return SearchedKey(
        name, now, 1, lambda tokens: lambda s: _with_optim(s, stage, micro_tokens=tokens)
    )


# -- settings that may be needed beside others


def _steps(sized: Sized, stage: str | None) -> list[Fit]:
    """Return the settings that a recipe does not have yet: what costs only time, then adapters,
    then a type."""
    recipe, steps = sized.recipe, list[Fit]()
    if stage is not None:
        optim, longest = recipe.stages[stage].optim, recipe.budget.total_tokens
        steps += [] if optim.activation_checkpointing else [_anew(stage)]
        steps += [_one_text(stage, longest)] if optim.micro_tokens > longest else []
        steps += [_small_moments(stage)] if _can_round_moments(sized, optim) else []
        steps += [_adapters()] if recipe.lora is None else []
    rounded = Fit("dtype=bfloat16", 0, lambda s: _with(s, dtype="bfloat16"))
    return [*steps, *([rounded] if recipe.dtype == "float32" else [])]


def _anew(stage: str) -> Fit:
    """Return the setting that computes activations again in the backward pass."""
    setting = f"stages.{stage}.optim.activation_checkpointing=true"
    return Fit(setting, 0, lambda s: _with_optim(s, stage, activation_checkpointing=True))


def _one_text(stage: str, tokens: int) -> Fit:
    """Return the setting for a micro-batch of the longest text alone."""
    setting = f"stages.{stage}.optim.micro_tokens={tokens}"
    return Fit(setting, 0, lambda s: _with_optim(s, stage, micro_tokens=tokens))


def _can_round_moments(sized: Sized, optim: Optim) -> bool:
    """Return whether moments in float32 could have 8 bits here, which takes a package."""
    if optim.moments != "float32":
        return False
    try:
        adamw_type(optim.model_copy(update={"moments": "8bit"}), sized.device)
    except UserError:
        return False
    return True


def _small_moments(stage: str) -> Fit:
    setting = f"stages.{stage}.optim.moments=8bit"
    return Fit(setting, 0, lambda s: _with_optim(s, stage, moments="8bit"))


def _adapters() -> Fit:
    lora = Lora()

    def change(sized: Sized) -> Sized:
        return replace(_with(sized, lora=lora), trained=_adapter_size(sized.config, lora.rank))

    return Fit(f"lora.rank={lora.rank}", 0, change)


def _enough(sized: Sized, fit: Fit, estimate: Estimate, there: int) -> Fit | None:
    """Return a setting with the bytes that it saves, if it is enough by itself."""
    less = estimate(fit.change(sized))
    return replace(fit, saved=estimate(sized) - less) if less <= there else None


def _adapter_size(config: Any, rank: int) -> int:
    """Return the size of an adapter on all linear layers: two of each have rank times a width."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    size = getattr(config, "head_dim", None) or hidden // heads
    attention = 2 * (hidden + heads * size) + 2 * (hidden + key_value_heads(config) * size)
    layer = attention + 3 * (hidden + feed_forward_width(config))
    return int(rank * layer * config.num_hidden_layers)


def _with(sized: Sized, **keys: Any) -> Sized:
    return replace(sized, recipe=sized.recipe.model_copy(update=keys))


def _with_optim(sized: Sized, stage: str, **keys: Any) -> Sized:
    settings: Stage = sized.recipe.stages[stage]
    changed = settings.model_copy(update={"optim": settings.optim.model_copy(update=keys)})
    return _with(sized, stages={**sized.recipe.stages, stage: changed})
