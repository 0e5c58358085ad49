"""The memory of every process of a run at its peak, by what it is for.

It extends the estimates of `runs/memory.py` to models in shards and to engines that have devices of
their own. docs/lab-notes/scaling.md has the formulas.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from fieldcraft.config.cluster import Cluster
from fieldcraft.config.names import VLLM
from fieldcraft.config.stages import Stage
from fieldcraft.runs.memory import (
    BYTES,
    FLOAT,
    MOMENTS,
    PROCESS_BYTES,
    Sizes,
    activation_bytes,
    longest_text,
    stage_cache_bytes,
    token_bytes,
)

Parts = dict[str, int]  # what for, and bytes
STATE, READ, GRADIENTS = "masters and moments", "read only", "gradients"
GATHERED, ACTIVATIONS, PROCESS = "gathered", "activations", "process"
WEIGHTS, CACHES = "weights", "caches"
# What Ray and gloo take in a trainer: the mean of what bench/ranks.py found missing without it.
CLUSTER_BYTES = 130_000_000


def root_parameters(config: Any) -> int:
    """Return the number of parameters outside of the layers: the input embedding and, unless it is
    the same, the output."""
    matrices = 1 if config.tie_word_embeddings else 2
    return int(matrices * config.vocab_size * config.hidden_size)


def rank_parts(setup: Sizes, stage: Stage, cluster: Cluster) -> Parts:
    """Return the memory of a trainer's share. What is trained, what is only read and the gradients
    are cut evenly. Whole at a time are two layers (one is computed, the next one gathered), the
    gradient of one, and all that is outside of the layers. The gradient of the latter is whole when
    there are no activations any more, so the larger of both counts."""
    recipe, footprint, ranks = setup.recipe, stage.footprint, max(cluster.trainers, 1)
    size = BYTES[recipe.dtype]
    critics = setup.parameters * footprint.critics
    trained = setup.trained + critics
    others = footprint.references + footprint.teachers
    read = setup.parameters * size * footprint.teachers
    if recipe.lora is None:
        read = setup.parameters * size * others
    else:
        read += setup.parameters * size + setup.trained * FLOAT * footprint.references
    root = root_parameters(setup.config)
    layer = (setup.parameters - root) // setup.config.num_hidden_layers
    whole = 0 if ranks == 1 else (root + 2 * layer) * size + layer * FLOAT
    moments = "float32" if cluster.trainers else stage.optim.moments  # others are not cut
    root_gradient = 0 if ranks == 1 else root * (size + FLOAT)
    process = PROCESS_BYTES + (CLUSTER_BYTES if cluster.trainers else 0)
    return {
        STATE: ceil(trained * (FLOAT + MOMENTS[moments]) / ranks),
        READ: ceil(read / ranks),
        GRADIENTS: ceil(trained * FLOAT / ranks),
        GATHERED: whole if ranks > 1 else _rounded(setup),
        ACTIVATIONS: max(_line_bytes(setup, stage, cluster.context), root_gradient),
        PROCESS: process,
    }


def _line_bytes(setup: Sizes, stage: Stage, context: int) -> int:
    """Return the bytes that a rank keeps of a line of tokens, of which it has its part. Keys and
    values are those of the whole line, in each layer that is kept."""
    mine = max(stage.optim.micro_tokens, ceil(longest_text(setup.recipe, stage) / context))
    kept = activation_bytes(setup, stage, mine)
    if context == 1:
        return kept
    others = (context - 1) * mine * token_bytes(setup, BYTES[setup.recipe.policy_dtype])
    if stage.optim.activation_checkpointing:  # those of one layer at a time
        others //= setup.config.num_hidden_layers
    return kept + others


def _rounded(setup: Sizes) -> int:
    """Return the bytes of the copy that a model which is not in shards computes with, where it has
    masters."""
    if setup.recipe.lora is not None or setup.recipe.dtype == "float32":
        return 0
    return setup.trained * BYTES[setup.recipe.dtype]


def engine_parts(setup: Sizes, stage: Stage, cluster: Cluster) -> Parts:
    """Return the memory of one device of an engine: weights and caches are cut over its devices.
    `max_rows` is that of all engines together. vLLM takes what `engine.memory` says."""
    recipe, footprint = setup.recipe, stage.footprint
    size, devices = BYTES[recipe.dtype], cluster.engine_devices
    rows = ceil(min(recipe.max_rows, footprint.rollouts) / max(cluster.engines, 1))
    caches = ceil(stage_cache_bytes(setup, stage, rows) / devices)
    if recipe.engine.name == VLLM:
        caches = ceil(recipe.engine.settings.get("memory", 1.0) * 2**30)
    return {
        WEIGHTS: ceil(setup.parameters * size / devices),
        CACHES: caches,
        PROCESS: PROCESS_BYTES,
    }


def process_parts(setup: Sizes, stage: Stage, cluster: Cluster) -> dict[str, Parts]:
    """Return the memory that each kind of process takes in a stage. Those that train and sample in
    turns have two rows, of which the larger counts."""
    trainer = rank_parts(setup, stage, cluster)
    kept = {part: trainer[part] for part in (STATE, READ, GATHERED)}
    if not cluster.trainers and not cluster.engines:
        return _own_parts(setup, stage, trainer, kept)
    if stage.kind != "rl":
        return {"trainer": trainer}
    engine = engine_parts(setup, stage, cluster)
    if not cluster.colocate:
        return {"trainer": trainer, "engine": engine}
    del kept[GATHERED]
    return {"trainer, training": trainer, "trainer, sampling": kept | engine}


def _own_parts(setup: Sizes, stage: Stage, trainer: Parts, kept: Parts) -> dict[str, Parts]:
    """Return the memory of the run's own process, which trains and samples with one model;
    `runs/memory.py` has its sum. Where it does both at once, the engine has a copy of what is
    trained."""
    recipe, footprint = setup.recipe, stage.footprint
    frozen = setup.parameters * BYTES[recipe.dtype] * footprint.frozen
    trainer[READ] += frozen
    kept[READ] += frozen
    rows = min(recipe.max_rows, footprint.rollouts)
    caches = (1 + footprint.frozen) * stage_cache_bytes(setup, stage, rows)
    if footprint.overlaps:
        copied = setup.trained * BYTES[recipe.policy_dtype]
        return {"process": trainer | {WEIGHTS: copied, CACHES: caches}}
    if not rows:
        return {"process": trainer}
    sampling = {**kept, CACHES: caches, PROCESS: PROCESS_BYTES}
    return {"process, training": trainer, "process, sampling": sampling}
