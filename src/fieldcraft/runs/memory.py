"""Estimates of the memory and the disk that a run will need, compared with what there is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Protocol

import torch

from fieldcraft.config.recipe import Recipe
from fieldcraft.config.stages import Stage
from fieldcraft.engine.local.blocks import BLOCK
from fieldcraft.engine.sizes import feed_forward_width, key_value_heads
from fieldcraft.runs.machine_memory import machine_memory
from fieldcraft.runs.memory_advice import Fit, Sized, applied, fitting_settings
from fieldcraft.train.output_layer import PIECE
from fieldcraft.train.weights import adamw_type
from fieldcraft.types import UserError

FLOAT = 4
CHECKPOINT_BYTES = 3 * FLOAT  # at most: a parameter and two moments
# Of two moments; in 8 bit 256 numbers share a scale. On a GPU that is full, host moves them out.
MOMENTS = {"float32": 2 * FLOAT, "8bit": 2 + 2 * FLOAT / 256, "host": 0.0}
# Measured: Python with torch and transformers takes 0.4 GB, and a heap keeps some of what is freed.
PROCESS_BYTES = 600_000_000
# Measured: copies of the logits of a piece at the peak of a step, 1.9 of supervised stages, and of
# reinforcement learning the same or, with entropy in its loss, 3.0.
LOGITS = {"supervised": 2, "rl": 3}
BYTES = {"float32": FLOAT, "bfloat16": 2}
CPU_IS_FULL = "can't allocate memory"  # what torch says


class Sizes(Protocol):
    """Numbers that the estimates are made from."""

    recipe: Recipe
    device: torch.device
    config: Any  # transformers' text configuration
    parameters: int
    trained: int  # of the parameters, or those of an adapter on them

    @property
    def has_weights(self) -> bool: ...


def memory_problems(setup: Sizes, notes: list[str]) -> Iterator[str]:
    """Check what the run needs at its peak, estimated, against the memory of the device, and that
    the moments of an optimiser can be kept as the recipe says."""
    for stage in setup.recipe.stages.values():
        adamw_type(stage.optim, setup.device)
    sizes = memory_sizes(setup)
    name = _largest_part(sizes)
    there = free_memory(setup.device)
    notes.append(f"about {giga(sizes[name])} of {giga(there)}")
    if sizes[name] > there and setup.has_weights:
        yield (
            f"{name} needs about {giga(sizes[name])} of memory and {setup.device} has"
            f" {giga(there)}: {_remedy(setup, there)}."
        )


def _remedy(setup: Sizes, there: int) -> str:
    """Return the settings with which all parts of a run fit, as few as can be."""
    sized = Sized(setup.recipe, setup.device, setup.config, setup.parameters, setup.trained)
    found: list[Fit] = []
    while (part := _largest_part(sizes := memory_sizes(sized))) and sizes[part] > there:
        stage = next((name for name in sized.recipe.stages if part == _stage_name(name)), None)
        fits = fitting_settings(sized, stage, partial(_size_of, part), there)
        if not fits:
            return _too_large(sized, stage, there)
        found += fits
        sized = applied(sized, fits)
    *others, last = (fit.setting for fit in found)
    settings = f"{', '.join(others)} and {last}" if others else last
    return f"set {settings}, with which it fits"


def _largest_part(sizes: dict[str, int]) -> str:
    return max(sizes, key=sizes.__getitem__)


def _size_of(part: str, sized: Sizes) -> int:
    return memory_sizes(sized)[part]


def _too_large(sized: Sized, stage: str | None, there: int) -> str:
    """Return what to do where no settings are enough."""
    weights = sized.parameters * BYTES[sized.recipe.policy_dtype]
    if stage is not None:
        weights = weight_bytes(sized, sized.recipe.stages[stage])
    weights += PROCESS_BYTES
    if weights > there:
        return f"its weights alone take {giga(weights)}, so take a smaller model"
    return "no keys are enough, so take a smaller model"


@contextmanager
def within_memory(stage: str) -> Iterator[None]:
    """Raise UserError where a stage needs more memory than there is."""
    try:
        yield
    except RuntimeError as error:  # that of a GPU is a subclass, that of a CPU is not
        if not (isinstance(error, torch.OutOfMemoryError) or CPU_IS_FULL in str(error)):
            raise
        raise UserError(
            f"stage '{stage}' needs more memory than there is: lower its optim.micro_tokens or"
            " max_rows, or set optim.activation_checkpointing; then run the same command with this"
            " change, which resumes."
        ) from error


def memory_sizes(setup: Sizes) -> dict[str, int]:
    """Return the estimate for every part of a run, in bytes."""
    recipe = setup.recipe
    rows = min(recipe.max_rows, recipe.evaluation.concurrency)
    size, tokens = BYTES[recipe.policy_dtype], recipe.as_evaluated.budget.total_tokens
    evaluation = PROCESS_BYTES + setup.parameters * size + cache_bytes(setup, rows, size, tokens)
    stages = {_stage_name(name): memory_bytes(setup, s) for name, s in recipe.stages.items()}
    return {**stages, "an evaluation": evaluation}


def _stage_name(name: str) -> str:
    return f"stage '{name}'"


def memory_bytes(setup: Sizes, stage: Stage) -> int:
    """Estimate what a stage takes at its peak, in bytes: its weights, and the gradients and the
    activations of one micro-batch or, in reinforcement learning before that, the caches of the
    rollouts. If it overlaps, it takes both at once, and the engine has a copy of the trained
    weights."""
    recipe, footprint = setup.recipe, stage.footprint
    tokens = max(stage.optim.micro_tokens, longest_text(recipe, stage))
    rows = min(recipe.max_rows, footprint.rollouts)
    caches = (1 + footprint.frozen) * stage_cache_bytes(setup, stage, rows)
    gradients = (setup.trained + setup.parameters * footprint.critics) * FLOAT
    training = gradients + activation_bytes(setup, stage, tokens)
    if footprint.overlaps:
        peak = training + caches + setup.trained * BYTES[recipe.policy_dtype]
    else:
        peak = max(training, caches)
    return PROCESS_BYTES + weight_bytes(setup, stage) + peak


def activation_bytes(setup: Sizes, stage: Stage, tokens: int) -> int:
    """Return the bytes that a step keeps of a micro-batch with so many tokens.

    Activations have the recipe's type, and logits are float32. With adapters activations are
    float32, too: an adapter keeps its own copy of what it reads. A layer keeps for the backward
    pass, a token: two normalised inputs and what they were made from (4 h), queries, keys, values
    and the attention's output (4 h), the residual stream (2 h) and four products of the
    feed-forward width f. Attention scores are not kept (fused kernels). With checkpointing every
    layer keeps its input, and one at a time all of that. Logits are there for a piece of the tokens
    at a time, in several copies: themselves, normalised, their gradients.
    """
    config, recipe = setup.config, setup.recipe
    layer = 10 * config.hidden_size + 4 * feed_forward_width(config)
    kept = config.num_hidden_layers * layer
    if stage.optim.activation_checkpointing:
        kept = config.num_hidden_layers * config.hidden_size + layer
    logits = LOGITS[stage.kind] + stage.footprint.logits
    piece = min(tokens * config.vocab_size, PIECE)
    return tokens * kept * BYTES[recipe.policy_dtype] + logits * piece * FLOAT


def weight_bytes(setup: Sizes, stage: Stage) -> int:
    """Return the bytes of what is trained with its optimiser, and of what is only read, both
    without gradients. A teacher counts as large as the model itself."""
    only_read, footprint = BYTES[setup.recipe.dtype], stage.footprint
    trained = setup.parameters * footprint.critics + setup.trained
    others = footprint.frozen + footprint.teachers
    models = setup.parameters * only_read * others
    models += ceil(trained * trained_bytes(setup.recipe, stage))
    if setup.recipe.lora is None:
        return models + setup.parameters * only_read * footprint.references
    # an adapter's base, and a copy of the adapter as the reference
    return models + setup.parameters * only_read + setup.trained * FLOAT * footprint.references


def trained_bytes(recipe: Recipe, stage: Stage) -> float:
    """Return the bytes of one number that is trained: of its master, its moments and, where the
    model computes in another type, its copy in that type."""
    rounded = recipe.lora is None and recipe.dtype != "float32"
    copy = BYTES[recipe.dtype] if rounded else 0
    return FLOAT + MOMENTS[stage.optim.moments] + copy


def longest_text(recipe: Recipe, stage: Stage) -> int:
    """Return the number of tokens of the longest text that a stage may train on: of any of its
    budgets."""
    periods = stage.periods(recipe.budget)
    return max((p.limits.total_tokens for p in periods), default=recipe.budget.total_tokens)


def stage_cache_bytes(setup: Sizes, stage: Stage, rows: int) -> int:
    """Return the bytes of the keys and values of so many rollouts of a stage, or of the evaluations
    while it trains. Each counts as if it were as long as the larger of the two budgets lets it be,
    and shared none of them."""
    recipe = setup.recipe
    tokens = longest_text(recipe, stage)
    if recipe.evaluation.during is not None:
        tokens = max(tokens, recipe.as_evaluated.budget.total_tokens)
    return cache_bytes(setup, rows, BYTES[recipe.dtype], tokens)


def cache_bytes(setup: Sizes, rows: int, size: int, tokens: int) -> int:
    """Return the bytes of the keys and values of so many rollouts of so many tokens, in whole
    blocks."""
    blocks = -(-tokens // BLOCK)
    return rows * blocks * BLOCK * token_bytes(setup, size)


def token_bytes(setup: Sizes, size: int) -> int:
    """Return the bytes of the keys and values of a token in all layers."""
    config = setup.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * key_value_heads(config) * width * size)


def free_memory(device: torch.device) -> int:
    """Return the free bytes: those free on a GPU, all that this process may have on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return machine_memory()


def disk_problems(setup: Sizes, out: Path, notes: list[str]) -> Iterator[str]:
    """Check that the disk has room. Every stage leaves its model and the checkpoints that it keeps;
    the running one has two while it writes one, and in reinforcement learning the healthiest one
    besides."""
    stages = setup.recipe.stages.values()
    critics = max((stage.footprint.critics for stage in stages), default=0)
    kept = [stage.keep_checkpoints for stage in stages]
    checkpoints = 2 + any(stage.kind == "rl" for stage in stages)
    checkpoints += sum(keep for keep in kept if isinstance(keep, int))
    in_checkpoint = (setup.trained + setup.parameters * critics) * CHECKPOINT_BYTES
    needed = setup.parameters * len(stages) * FLOAT + checkpoints * in_checkpoint
    free = shutil.disk_usage(out).free
    more = f", and {giga(in_checkpoint)} for each checkpoint that is kept" if "all" in kept else ""
    notes.append(f"about {giga(needed)} of {giga(free)}{more}")
    if needed > free and setup.has_weights:
        yield (
            f"the run writes about {giga(needed)} and {out} has {giga(free)} free: make room or"
            " choose a folder on another disk."
        )


def giga(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
