"""Estimates of the memory and disk space required by a run, compared with the available ones."""

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
from fieldcraft.engine.local.block_allocator import BLOCK_TOKENS
from fieldcraft.engine.sizes import get_feed_forward_width, get_num_key_value_heads
from fieldcraft.runs.machine_memory import read_memory_limit
from fieldcraft.runs.memory_advice import (
    MemorySaving,
    RecipeSizes,
    apply_savings,
    find_fitting_settings,
)
from fieldcraft.train.master_weights import choose_adamw
from fieldcraft.train.output_layer import MAX_CHUNK_LOGITS
from fieldcraft.types import UserError

FLOAT32_BYTES = 4
CHECKPOINT_BYTES_PER_PARAMETER = 3 * FLOAT32_BYTES  # at most: a parameter and two moments
# Bytes of two moments; in 8 bit, 256 numbers share a scale. The placement `cpu` moves them out of
# a full GPU.
MOMENT_BYTES = {"float32": 2 * FLOAT32_BYTES, "8bit": 2 + 2 * FLOAT32_BYTES / 256, "cpu": 0.0}
# Measured: Python with torch and transformers takes 0.4 GB, and the heap retains some freed memory.
PROCESS_BYTES = 600_000_000
# Measured: copies of the logits of a chunk at the peak of a step: 1.9 for supervised stages, the
# same for reinforcement learning, or 3.0 with entropy in its loss.
LOGIT_COPIES = {"supervised": 2, "rl": 3}
DTYPE_BYTES = {"float32": FLOAT32_BYTES, "bfloat16": 2}
CPU_OUT_OF_MEMORY = "can't allocate memory"  # error message of torch


class ModelSizes(Protocol):
    """Quantities used by the estimates."""

    recipe: Recipe
    device: torch.device
    config: Any  # transformers' text configuration
    parameters: int
    trainable_parameters: int  # of the full model, or of an adapter

    @property
    def has_weights(self) -> bool: ...


def check_memory(sizes: ModelSizes, notes: list[str]) -> Iterator[str]:
    """Check the run's estimated peak memory against the memory of the device, and that the
    optimiser moments can be stored as configured."""
    for stage in sizes.recipe.stages.values():
        choose_adamw(stage.optim, sizes.device)
    estimates = estimate_run_memory(sizes)
    name = _find_largest_phase(estimates)
    available = read_free_memory(sizes.device)
    notes.append(f"about {format_gb(estimates[name])} of {format_gb(available)}")
    if estimates[name] > available and sizes.has_weights:
        yield (
            f"{name} needs about {format_gb(estimates[name])} of memory and {sizes.device} has"
            f" {format_gb(available)}: {_make_advice(sizes, available)}."
        )


def _make_advice(sizes: ModelSizes, available: int) -> str:
    """Return a minimal set of settings with which all parts of a run fit."""
    sized = RecipeSizes(
        sizes.recipe, sizes.device, sizes.config, sizes.parameters, sizes.trainable_parameters
    )
    savings: list[MemorySaving] = []
    while (phase := _find_largest_phase(estimates := estimate_run_memory(sized))) and estimates[
        phase
    ] > available:
        stage = next((name for name in sized.recipe.stages if phase == _label_stage(name)), None)
        fitting = find_fitting_settings(sized, stage, partial(_estimate_phase, phase), available)
        if not fitting:
            return _advise_smaller_model(sized, stage, available)
        savings += fitting
        sized = apply_savings(sized, fitting)
    *others, last = (saving.setting for saving in savings)
    settings = f"{', '.join(others)} and {last}" if others else last
    return f"set {settings}, with which it fits"


def _find_largest_phase(estimates: dict[str, int]) -> str:
    return max(estimates, key=estimates.__getitem__)


def _estimate_phase(phase: str, sized: ModelSizes) -> int:
    return estimate_run_memory(sized)[phase]


def _advise_smaller_model(sized: RecipeSizes, stage: str | None, available: int) -> str:
    """Return advice for the case that no settings suffice."""
    weights = sized.parameters * DTYPE_BYTES[sized.recipe.policy_dtype]
    if stage is not None:
        weights = estimate_weight_bytes(sized, sized.recipe.stages[stage])
    weights += PROCESS_BYTES
    if weights > available:
        return f"its weights alone need {format_gb(weights)}, so use a smaller model"
    return "no keys are enough, so use a smaller model"


@contextmanager
def raise_memory_errors(stage: str) -> Iterator[None]:
    """Raise UserError if a stage runs out of memory."""
    try:
        yield
    except RuntimeError as error:  # a GPU error is a subclass, a CPU error is not
        if not (isinstance(error, torch.OutOfMemoryError) or CPU_OUT_OF_MEMORY in str(error)):
            raise
        raise UserError(
            f"stage '{stage}' needs more memory than available: lower its optim.micro_batch_tokens"
            " or max_num_seqs, or set optim.activation_checkpointing; then run the same command"
            " with this change, which resumes."
        ) from error


def estimate_run_memory(sizes: ModelSizes) -> dict[str, int]:
    """Return the estimate for every part of a run, in bytes."""
    recipe = sizes.recipe
    rows = min(recipe.max_num_seqs, recipe.evaluation.concurrency)
    size, tokens = (
        DTYPE_BYTES[recipe.policy_dtype],
        recipe.evaluation_recipe.budget.max_context_tokens,
    )
    evaluation = (
        PROCESS_BYTES + sizes.parameters * size + estimate_cache_bytes(sizes, rows, size, tokens)
    )
    stages = {
        _label_stage(name): estimate_stage_memory(sizes, s) for name, s in recipe.stages.items()
    }
    return {**stages, "an evaluation": evaluation}


def _label_stage(name: str) -> str:
    return f"stage '{name}'"


def estimate_stage_memory(sizes: ModelSizes, stage: Stage) -> int:
    """Estimate the peak memory of a stage, in bytes: its weights, plus either the gradients and the
    activations of one micro-batch or, in reinforcement learning, the preceding caches of the
    rollouts. If sampling and training overlap, both are added, and the engine has a copy of the
    trained weights."""
    recipe, footprint = sizes.recipe, stage.memory_footprint
    tokens = max(stage.optim.micro_batch_tokens, find_max_text_tokens(recipe, stage))
    rows = min(recipe.max_num_seqs, footprint.rollouts)
    caches = (1 + footprint.frozen_simulators) * estimate_stage_cache_bytes(sizes, stage, rows)
    gradients = (sizes.trainable_parameters + sizes.parameters * footprint.critics) * FLOAT32_BYTES
    training = gradients + estimate_activation_bytes(sizes, stage, tokens)
    if footprint.concurrent_sampling:
        peak = training + caches + sizes.trainable_parameters * DTYPE_BYTES[recipe.policy_dtype]
    else:
        peak = max(training, caches)
    return PROCESS_BYTES + estimate_weight_bytes(sizes, stage) + peak


def estimate_activation_bytes(sizes: ModelSizes, stage: Stage, tokens: int) -> int:
    """Return the bytes that a step stores for a micro-batch of `tokens` tokens.

    Activations have the recipe's data type, and logits are float32. With adapters activations are
    also float32, because an adapter stores its own copy of its inputs. For the backward pass, a
    layer stores per token: two normalised inputs and their originals (4 h), queries, keys, values
    and the attention's output (4 h), the residual stream (2 h) and four products of the
    feed-forward width f. Attention scores are not stored (fused kernels). With checkpointing every
    layer stores its input, and one at a time all of the above. Logits exist for one chunk of the
    tokens at a time, in several copies: raw, normalised, their gradients.
    """
    config, recipe = sizes.config, sizes.recipe
    layer = 10 * config.hidden_size + 4 * get_feed_forward_width(config)
    stored = config.num_hidden_layers * layer
    if stage.optim.activation_checkpointing:
        stored = config.num_hidden_layers * config.hidden_size + layer
    logits = LOGIT_COPIES[stage.kind] + stage.memory_footprint.logit_copies
    chunk = min(tokens * config.vocab_size, MAX_CHUNK_LOGITS)
    return tokens * stored * DTYPE_BYTES[recipe.policy_dtype] + logits * chunk * FLOAT32_BYTES


def estimate_weight_bytes(sizes: ModelSizes, stage: Stage) -> int:
    """Return the bytes of trained weights with their optimiser state, and of read-only weights,
    without gradients. A teacher is assumed to be as large as the model itself."""
    frozen_bytes, footprint = DTYPE_BYTES[sizes.recipe.dtype], stage.memory_footprint
    trained = sizes.parameters * footprint.critics + sizes.trainable_parameters
    frozen_models = footprint.frozen_simulators + footprint.teachers
    models = sizes.parameters * frozen_bytes * frozen_models
    models += ceil(trained * estimate_bytes_per_parameter(sizes.recipe, stage))
    if sizes.recipe.lora is None:
        return models + sizes.parameters * frozen_bytes * footprint.references
    # the base of an adapter, and a copy of the adapter as the reference
    return (
        models
        + sizes.parameters * frozen_bytes
        + sizes.trainable_parameters * FLOAT32_BYTES * footprint.references
    )


def estimate_bytes_per_parameter(recipe: Recipe, stage: Stage) -> float:
    """Return the bytes per trained parameter: its master copy, its moments and, if the model
    computes in another data type, its copy in that type."""
    is_low_precision = recipe.lora is None and recipe.dtype != "float32"
    copy = DTYPE_BYTES[recipe.dtype] if is_low_precision else 0
    return FLOAT32_BYTES + MOMENT_BYTES[stage.optim.optimizer_state] + copy


def find_max_text_tokens(recipe: Recipe, stage: Stage) -> int:
    """Return the maximum number of tokens of a training text in a stage, over all its budgets."""
    phases = stage.budget_periods(recipe.budget)
    return max(
        (p.budget.max_context_tokens for p in phases), default=recipe.budget.max_context_tokens
    )


def estimate_stage_cache_bytes(sizes: ModelSizes, stage: Stage, rows: int) -> int:
    """Return the bytes of the keys and values of `rows` rollouts of a stage, or of the evaluations
    during it. Each is assumed to have the maximum length of the larger budget, without sharing."""
    recipe = sizes.recipe
    tokens = find_max_text_tokens(recipe, stage)
    if recipe.evaluation.periodic is not None:
        tokens = max(tokens, recipe.evaluation_recipe.budget.max_context_tokens)
    return estimate_cache_bytes(sizes, rows, DTYPE_BYTES[recipe.dtype], tokens)


def estimate_cache_bytes(sizes: ModelSizes, rows: int, value_bytes: int, tokens: int) -> int:
    """Return the bytes of the keys and values of `rows` rollouts of `tokens` tokens each, in whole
    blocks."""
    blocks = -(-tokens // BLOCK_TOKENS)
    return rows * blocks * BLOCK_TOKENS * estimate_token_cache_bytes(sizes, value_bytes)


def estimate_token_cache_bytes(sizes: ModelSizes, value_bytes: int) -> int:
    """Return the bytes of the keys and values of a token in all layers."""
    config = sizes.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * get_num_key_value_heads(config) * width * value_bytes)


def read_free_memory(device: torch.device) -> int:
    """Return the available bytes: free memory of a GPU, or on a CPU the limit of this process."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return read_memory_limit()


def check_disk(sizes: ModelSizes, out: Path, notes: list[str]) -> Iterator[str]:
    """Check the free disk space. Every stage leaves its model and its retained checkpoints; the
    running one temporarily has two and, in reinforcement learning, also the healthiest one."""
    stages = sizes.recipe.stages.values()
    critics = max((stage.memory_footprint.critics for stage in stages), default=0)
    retained = [stage.keep_checkpoints for stage in stages]
    checkpoints = 2 + any(stage.kind == "rl" for stage in stages)
    checkpoints += sum(number for number in retained if isinstance(number, int))
    checkpoint_bytes = (
        sizes.trainable_parameters + sizes.parameters * critics
    ) * CHECKPOINT_BYTES_PER_PARAMETER
    needed = sizes.parameters * len(stages) * FLOAT32_BYTES + checkpoints * checkpoint_bytes
    free = shutil.disk_usage(out).free
    more = (
        f", and {format_gb(checkpoint_bytes)} for each retained checkpoint"
        if "all" in retained
        else ""
    )
    notes.append(f"about {format_gb(needed)} of {format_gb(free)}{more}")
    if needed > free and sizes.has_weights:
        yield (
            f"the run writes about {format_gb(needed)} and {out} has {format_gb(free)} free: free"
            " disk space or choose a folder on another disk."
        )


def format_gb(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
