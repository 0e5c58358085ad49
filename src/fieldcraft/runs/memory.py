"""Checks of the memory and disk space that a run needs against the available ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from fieldcraft.runs.machine_memory import read_memory_limit
from fieldcraft.runs.memory_advice import (
    MemorySaving,
    RecipeSizes,
    apply_savings,
    find_fitting_settings,
)
from fieldcraft.runs.memory_estimate import (
    DTYPE_BYTES,
    FLOAT32_BYTES,
    PROCESS_BYTES,
    ModelSizes,
    count_trained_parameters,
    estimate_run_memory,
    estimate_weight_bytes,
    label_stage,
)
from fieldcraft.train.master_weights import choose_adamw
from fieldcraft.types import UserError

CHECKPOINT_BYTES_PER_PARAMETER = 3 * FLOAT32_BYTES  # at most: a parameter and two moments
CPU_OUT_OF_MEMORY = "can't allocate memory"  # error message of torch


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
        stage = next((name for name in sized.recipe.stages if phase == label_stage(name)), None)
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


def read_free_memory(device: torch.device) -> int:
    """Return the available bytes: free memory of a GPU, or on a CPU the limit of this process."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return read_memory_limit()


def check_disk(sizes: ModelSizes, out: Path, notes: list[str]) -> Iterator[str]:
    """Check the free disk space. Every stage leaves its model and its retained checkpoints; the
    running one temporarily has two and, in reinforcement learning, also the healthiest one."""
    stages = sizes.recipe.stages.values()
    trained = max(
        (count_trained_parameters(sizes, stage) for stage in stages),
        default=sizes.trainable_parameters,
    )
    retained = [stage.keep_checkpoints for stage in stages]
    checkpoints = 2 + any(stage.kind == "rl" for stage in stages)
    checkpoints += sum(number for number in retained if isinstance(number, int))
    checkpoint_bytes = trained * CHECKPOINT_BYTES_PER_PARAMETER
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


def format_gb(size: float) -> str:
    """Format a number of bytes as GB."""
    return f"{size / 1e9:.3g} GB"
