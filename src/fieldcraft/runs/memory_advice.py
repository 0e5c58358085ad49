"""Recipe keys and values with which a run fits into memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch

from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sections import LoraConfig, Optim
from fieldcraft.config.stages import Stage
from fieldcraft.engine.sizes import get_feed_forward_width, get_num_key_value_heads
from fieldcraft.train.master_weights import choose_adamw
from fieldcraft.types import UserError

Estimator = Callable[["RecipeSizes"], int]


@dataclass
class RecipeSizes:
    """A recipe with the inputs of its estimates (`runs.memory_estimate.ModelSizes`)."""

    recipe: Recipe
    device: torch.device
    config: Any
    parameters: int
    trainable_parameters: int
    has_weights: bool = True


RecipeChange = Callable[["RecipeSizes"], "RecipeSizes"]


@dataclass(frozen=True)
class MemorySaving:
    """Setting with which something fits, the bytes that its key can save, and the change to the
    recipe."""

    setting: str
    saved_bytes: int
    apply: RecipeChange


def find_fitting_settings(
    sized: RecipeSizes, stage: str | None, estimate: Estimator, available: int
) -> list[MemorySaving]:
    """Return settings, as in "max_num_seqs=3", with which `estimate` is at most `available` bytes.
    A single key is preferred; otherwise it follows keys that only cost time, and then adapters and
    a smaller data type. None of the settings can be omitted. Empty if no settings suffice. `stage`
    is None for an evaluation."""
    savings: list[MemorySaving] = []
    for saving in (None, *_list_savings(sized, stage)):
        savings += [] if saving is None else [saving]
        changed = apply_savings(sized, savings)
        last = find_best_saving(changed, stage, estimate, available)
        if estimate(changed) <= available or last is not None:
            return _drop_unneeded(
                sized, [*savings, *([] if last is None else [last])], estimate, available
            )
    return []


def apply_savings(sized: RecipeSizes, savings: Sequence[MemorySaving]) -> RecipeSizes:
    """Return the recipe with the given settings."""
    for saving in savings:
        sized = saving.apply(sized)
    return sized


def _drop_unneeded(
    sized: RecipeSizes, savings: Sequence[MemorySaving], estimate: Estimator, available: int
) -> list[MemorySaving]:
    """Return the subset of settings that is required to fit."""
    needed = list(savings)
    for saving in savings:
        others = [other for other in needed if other is not saving]
        if estimate(apply_savings(sized, others)) <= available:
            needed = others
    return needed


def find_best_saving(
    sized: RecipeSizes, stage: str | None, estimate: Estimator, available: int
) -> MemorySaving | None:
    """Return a single setting with which `estimate` is at most `available` bytes: among keys that
    only cost time the one that saves most, else a shorter text length; None if no single key
    suffices."""
    keys = (
        [_max_num_seqs_key(sized)]
        if stage is None
        else [_max_num_seqs_key(sized), _micro_tokens_key(sized, stage)]
    )
    savings = [_find_largest_value(sized, key, estimate, available) for key in keys]
    savings += (
        [_measure_saving(sized, _checkpointing_saving(stage), estimate, available)]
        if stage is not None
        else []
    )
    best = [saving for saving in savings if saving is not None]
    best = best or [
        f
        for f in [_find_largest_value(sized, _total_tokens_key(sized), estimate, available)]
        if f is not None
    ]
    return max(best, key=attrgetter("saved_bytes")) if best else None


# -- keys with a searched value


@dataclass(frozen=True)
class TunableKey:
    """Key with its current value, its minimum, and the change for a new value."""

    name: str
    current: int
    minimum: int
    make_change: Callable[[int], RecipeChange]


def _find_largest_value(
    sized: RecipeSizes, key: TunableKey, estimate: Estimator, available: int
) -> MemorySaving | None:
    """Return the largest value of a key between its minimum and current value with which the
    estimate fits; the estimate increases with the value."""

    def size(value: int) -> int:
        return estimate(key.make_change(value)(sized))

    values = range(key.minimum, key.current)
    fitting = bisect_right(values, available, key=size)
    if not fitting:
        return None
    value = values[fitting - 1]
    return MemorySaving(
        f"{key.name}={value}", size(key.current) - size(key.minimum), key.make_change(value)
    )


def _max_num_seqs_key(sized: RecipeSizes) -> TunableKey:
    return TunableKey(
        "max_num_seqs",
        sized.recipe.max_num_seqs,
        1,
        lambda rows: lambda s: _with_keys(s, max_num_seqs=rows),
    )


def _total_tokens_key(sized: RecipeSizes) -> TunableKey:
    budget = sized.recipe.budget

    def change(tokens: int) -> RecipeChange:
        shorter = budget.model_copy(update={"max_context_tokens": tokens})
        return lambda s: _with_keys(s, budget=shorter)

    minimum = 2 * budget.max_turn_tokens  # a call and an answer
    return TunableKey("budget.max_context_tokens", budget.max_context_tokens, minimum, change)


def _micro_tokens_key(sized: RecipeSizes, stage: str) -> TunableKey:
    current = sized.recipe.stages[stage].optim.micro_batch_tokens
    name = f"stages.{stage}.optim.micro_batch_tokens"
    return TunableKey(
        name,
        current,
        1,
        lambda tokens: lambda s: _with_optim_keys(s, stage, micro_batch_tokens=tokens),
    )


# -- settings that can be combined


def _list_savings(sized: RecipeSizes, stage: str | None) -> list[MemorySaving]:
    """Return the settings that a recipe does not have yet: first those that only cost time, then
    adapters, then a smaller data type."""
    recipe, savings = sized.recipe, list[MemorySaving]()
    if stage is not None:
        optim, longest = recipe.stages[stage].optim, recipe.budget.max_context_tokens
        savings += [] if optim.activation_checkpointing else [_checkpointing_saving(stage)]
        savings += (
            [_micro_tokens_saving(stage, longest)] if optim.micro_batch_tokens > longest else []
        )
        savings += [_moments_saving(stage)] if _can_quantise_moments(sized, optim) else []
        savings += [_lora_saving()] if recipe.lora is None else []
    bfloat16 = MemorySaving("dtype=bfloat16", 0, lambda s: _with_keys(s, dtype="bfloat16"))
    return [*savings, *([bfloat16] if recipe.dtype == "float32" else [])]


def _checkpointing_saving(stage: str) -> MemorySaving:
    """Return the setting for activation checkpointing."""
    setting = f"stages.{stage}.optim.activation_checkpointing=true"
    return MemorySaving(
        setting, 0, lambda s: _with_optim_keys(s, stage, activation_checkpointing=True)
    )


def _micro_tokens_saving(stage: str, tokens: int) -> MemorySaving:
    """Return the setting for micro-batches of only the longest text."""
    setting = f"stages.{stage}.optim.micro_batch_tokens={tokens}"
    return MemorySaving(setting, 0, lambda s: _with_optim_keys(s, stage, micro_batch_tokens=tokens))


def _can_quantise_moments(sized: RecipeSizes, optim: Optim) -> bool:
    """Return whether float32 moments can be quantised to 8 bits here, which requires a package."""
    if optim.optimizer_state != "float32":
        return False
    try:
        choose_adamw(optim.model_copy(update={"optimizer_state": "8bit"}), sized.device)
    except UserError:
        return False
    return True


def _moments_saving(stage: str) -> MemorySaving:
    setting = f"stages.{stage}.optim.optimizer_state=8bit"
    return MemorySaving(setting, 0, lambda s: _with_optim_keys(s, stage, optimizer_state="8bit"))


def _lora_saving() -> MemorySaving:
    lora = LoraConfig()

    def change(sized: RecipeSizes) -> RecipeSizes:
        return replace(
            _with_keys(sized, lora=lora),
            trainable_parameters=_count_adapter_parameters(sized.config, lora.rank),
        )

    return MemorySaving(f"lora.rank={lora.rank}", 0, change)


def _measure_saving(
    sized: RecipeSizes, saving: MemorySaving, estimate: Estimator, available: int
) -> MemorySaving | None:
    """Return a setting with the bytes that it saves, if it suffices."""
    estimated = estimate(saving.apply(sized))
    return (
        replace(saving, saved_bytes=estimate(sized) - estimated) if estimated <= available else None
    )


def _count_adapter_parameters(config: Any, rank: int) -> int:
    """Return the number of parameters of an adapter on all linear layers: for each, two matrices of
    rank times a width."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    size = getattr(config, "head_dim", None) or hidden // heads
    attention = 2 * (hidden + heads * size) + 2 * (hidden + get_num_key_value_heads(config) * size)
    layer = attention + 3 * (hidden + get_feed_forward_width(config))
    return int(rank * layer * config.num_hidden_layers)


def _with_keys(sized: RecipeSizes, **keys: Any) -> RecipeSizes:
    return replace(sized, recipe=sized.recipe.model_copy(update=keys))


def _with_optim_keys(sized: RecipeSizes, stage: str, **keys: Any) -> RecipeSizes:
    settings: Stage = sized.recipe.stages[stage]
    changed = settings.model_copy(update={"optim": settings.optim.model_copy(update=keys)})
    return _with_keys(sized, stages={**sized.recipe.stages, stage: changed})
