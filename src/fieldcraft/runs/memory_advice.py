"""Recipe keys and values with which a run fits into memory."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from fieldcraft.config.sections import LoraConfig, Optim
from fieldcraft.engine.sizes import get_feed_forward_width, get_num_key_value_heads
from fieldcraft.runs.memory import format_gb
from fieldcraft.runs.memory_estimate import (
    DTYPE_BYTES,
    PROCESS_BYTES,
    ModelSizes,
    estimate_run_memory,
    estimate_weight_bytes,
    label_stage,
)
from fieldcraft.train.master_weights import choose_adamw
from fieldcraft.types import UserError

LORA_RANK = "lora.rank"  # key that adds adapters to a recipe


class Setting(NamedTuple):
    """Value of a key of a recipe."""

    key: str
    value: int | str

    def __str__(self) -> str:
        is_text = isinstance(self.value, str)
        return f"{self.key}={self.value if is_text else json.dumps(self.value)}"


def make_memory_advice(sizes: ModelSizes, available: int) -> str:
    """Return a minimal set of settings with which all parts of a run fit into `available` bytes,
    as advice for the user."""
    recipe, settings = sizes.recipe, list[Setting]()
    while (largest := _find_largest_part(sizes))[1] > available:
        part = largest[0]
        stage = next((name for name in recipe.stages if part == label_stage(name)), None)
        search = SettingSearch(part, stage, available)
        fitting = search.find_settings(sizes)
        if not fitting:
            return _advise_smaller_model(sizes, stage, available)
        settings += fitting
        sizes = apply_settings(sizes, fitting)
    *others, last = map(str, settings)
    text = f"{', '.join(others)} and {last}" if others else last
    return f"set {text}, with which it fits"


def _find_largest_part(sizes: ModelSizes) -> tuple[str, int]:
    return max(estimate_run_memory(sizes).items(), key=itemgetter(1))


def _advise_smaller_model(sizes: ModelSizes, stage: str | None, available: int) -> str:
    """Return advice for the case that no settings suffice."""
    weights = sizes.parameters * DTYPE_BYTES[sizes.recipe.policy_dtype]
    if stage is not None:
        weights = estimate_weight_bytes(sizes, sizes.recipe.stages[stage])
    weights += PROCESS_BYTES
    if weights > available:
        return f"its weights alone need {format_gb(weights)}, so use a smaller model"
    return "no keys are enough, so use a smaller model"


# -- search of settings


@dataclass(frozen=True)
class SettingSearch:
    """Search of settings with which a part of a run fits into `available` bytes. `stage` is None
    for an evaluation."""

    part: str
    stage: str | None
    available: int

    def find_settings(self, sizes: ModelSizes) -> list[Setting]:
        """Return settings, as in "max_num_seqs=3", with which the part fits. A single key is
        preferred; otherwise it follows keys that only cost time, and then adapters and a smaller
        data type. None of the settings can be omitted. Empty if no settings suffice."""
        settings: list[Setting] = []
        for setting in (None, *self._list_settings(sizes)):
            settings += [] if setting is None else [setting]
            changed = apply_settings(sizes, settings)
            last = self._find_single(changed)
            if last is not None or self._fits(changed):
                return self._drop_unneeded(sizes, [*settings, *([] if last is None else [last])])
        return []

    def _estimate(self, sizes: ModelSizes, *settings: Setting) -> int:
        return estimate_run_memory(apply_settings(sizes, settings))[self.part]

    def _fits(self, sizes: ModelSizes, *settings: Setting) -> bool:
        return self._estimate(sizes, *settings) <= self.available

    def _drop_unneeded(self, sizes: ModelSizes, settings: Sequence[Setting]) -> list[Setting]:
        """Return the subset of settings that is required to fit."""
        needed = list(settings)
        for setting in settings:
            others = [other for other in needed if other is not setting]
            if self._fits(sizes, *others):
                needed = others
        return needed

    def _find_single(self, sizes: ModelSizes) -> Setting | None:
        """Return a single setting with which the part fits: among keys that only cost time the one
        that can save most, else a shorter text length; None if no single key suffices."""
        lowest = [Setting("max_num_seqs", 1)]
        if self.stage is not None:
            lowest += [
                Setting(f"stages.{self.stage}.optim.micro_batch_tokens", 1),
                Setting(f"stages.{self.stage}.optim.activation_checkpointing", True),
            ]
        fitting = [setting for setting in lowest if self._fits(sizes, setting)]
        if fitting:
            best = min(fitting, key=lambda setting: self._estimate(sizes, setting))
            return self._find_largest_value(sizes, best)
        minimum = 2 * sizes.recipe.budget.max_turn_tokens  # a call and an answer
        shortest = Setting("budget.max_context_tokens", minimum)
        return self._find_largest_value(sizes, shortest) if self._fits(sizes, shortest) else None

    def _find_largest_value(self, sizes: ModelSizes, lowest: Setting) -> Setting:
        """Return the largest value of a number, from a lowest one, below its current value, with
        which the part fits; the estimate increases with the value."""
        key, minimum = lowest
        if not isinstance(minimum, int) or isinstance(minimum, bool):
            return lowest
        values = range(minimum, max(_get(sizes.recipe, key.split(".")), minimum + 1))
        fitting = bisect_right(
            values, self.available, key=lambda value: self._estimate(sizes, Setting(key, value))
        )
        return Setting(key, values[fitting - 1])

    def _list_settings(self, sizes: ModelSizes) -> Iterator[Setting]:
        """Yield the settings that a recipe does not have yet: first those that only cost time, then
        adapters, then a smaller data type."""
        recipe = sizes.recipe
        if self.stage is not None:
            key, optim = f"stages.{self.stage}.optim", recipe.stages[self.stage].optim
            longest = recipe.budget.max_context_tokens
            if not optim.activation_checkpointing:
                yield Setting(f"{key}.activation_checkpointing", True)
            if optim.micro_batch_tokens > longest:
                yield Setting(f"{key}.micro_batch_tokens", longest)
            if _can_quantise_moments(optim):
                yield Setting(f"{key}.optimizer_state", "8bit")
            if recipe.lora is None:
                yield Setting(LORA_RANK, LoraConfig().rank)
        if recipe.dtype == "float32":
            yield Setting("dtype", "bfloat16")


def _can_quantise_moments(optim: Optim) -> bool:
    """Return whether float32 moments can be quantised to 8 bits, which requires a package."""
    if optim.optimizer_state != "float32":
        return False
    try:
        choose_adamw(optim.model_copy(update={"optimizer_state": "8bit"}), torch.device("cpu"))
    except UserError:
        return False
    return True


# -- changed recipes


def apply_settings(sizes: ModelSizes, settings: Sequence[Setting]) -> ModelSizes:
    """Return the sizes of a recipe with other settings, which are not validated."""
    for key, value in settings:
        if key == LORA_RANK:
            lora = LoraConfig(rank=int(value))
            trainable = _count_adapter_parameters(sizes.config, lora.rank)
            recipe = _update(sizes.recipe, ["lora"], lora)
            sizes = replace(sizes, recipe=recipe, trainable_parameters=trainable)
        else:
            sizes = replace(sizes, recipe=_update(sizes.recipe, key.split("."), value))
    return sizes


def _get(section: Any, path: Sequence[str]) -> Any:
    for name in path:
        section = section[name] if isinstance(section, Mapping) else getattr(section, name)
    return section


def _update(section: Any, path: Sequence[str], value: Any) -> Any:
    """Return a copy of a section with another value of the key at the end of a path."""
    if not path:
        return value
    name, *rest = path
    changed = {name: _update(_get(section, [name]), rest, value)}
    if isinstance(section, Mapping):
        return {**section, **changed}
    return section.model_copy(update=changed)


def _count_adapter_parameters(config: Any, rank: int) -> int:
    """Return the number of parameters of an adapter on all linear layers: for each, two matrices of
    rank times a width."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    size = getattr(config, "head_dim", None) or hidden // heads
    attention = 2 * (hidden + heads * size) + 2 * (hidden + get_num_key_value_heads(config) * size)
    layer = attention + 3 * (hidden + get_feed_forward_width(config))
    return int(rank * layer * config.num_hidden_layers)
