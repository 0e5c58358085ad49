"""The memory of every process of a run at its peak, by what it is for.

It extends the estimates of `runs/memory.py` to models in shards and to engines that have devices of
their own. docs/lab-notes/scaling.md has the formulas.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from fieldcraft.config.cluster import ClusterConfig
from fieldcraft.config.names import VLLM_ENGINE
from fieldcraft.config.stages import Stage
from fieldcraft.runs.memory import (
    DTYPE_BYTES,
    FLOAT32_BYTES,
    MOMENT_BYTES,
    PROCESS_BYTES,
    ModelSizes,
    estimate_activation_bytes,
    estimate_stage_cache_bytes,
    estimate_token_cache_bytes,
    find_max_text_tokens,
)

MemoryParts = dict[str, int]  # what for, and bytes
OPTIMIZER_STATE, FROZEN_MODELS, GRADIENTS = "masters and moments", "read only", "gradients"
GATHERED, ACTIVATIONS, PROCESS = "gathered", "activations", "process"
WEIGHTS, CACHES = "weights", "caches"
# What Ray and gloo take in a trainer: the mean of what bench/ranks.py found missing without it.
CLUSTER_OVERHEAD_BYTES = 130_000_000


def count_embedding_parameters(config: Any) -> int:
    """Return the number of parameters outside of the layers: the input embedding and, unless it is
    the same, the output."""
    matrices = 1 if config.tie_word_embeddings else 2
    return int(matrices * config.vocab_size * config.hidden_size)


def estimate_rank_memory(sizes: ModelSizes, stage: Stage, cluster: ClusterConfig) -> MemoryParts:
    """Return the memory of a trainer's share. What is trained, what is only read and the gradients
    are cut evenly. Whole at a time are two layers (one is computed, the next one gathered), the
    gradient of one, and all that is outside of the layers. The gradient of the latter is whole when
    there are no activations any more, so the larger of both counts."""
    recipe, footprint, ranks = sizes.recipe, stage.memory_footprint, max(cluster.trainers, 1)
    size = DTYPE_BYTES[recipe.dtype]
    critics = sizes.parameters * footprint.critics
    trained = sizes.trainable_parameters + critics
    frozen_models = footprint.references + footprint.teachers
    frozen_bytes = sizes.parameters * size * footprint.teachers
    if recipe.lora is None:
        frozen_bytes = sizes.parameters * size * frozen_models
    else:
        frozen_bytes += (
            sizes.parameters * size
            + sizes.trainable_parameters * FLOAT32_BYTES * footprint.references
        )
    embedding = count_embedding_parameters(sizes.config)
    layer = (sizes.parameters - embedding) // sizes.config.num_hidden_layers
    gathered_bytes = 0 if ranks == 1 else (embedding + 2 * layer) * size + layer * FLOAT32_BYTES
    moments = "float32" if cluster.trainers else stage.optim.optimizer_state  # others are not cut
    embedding_gradient = 0 if ranks == 1 else embedding * (size + FLOAT32_BYTES)
    process = PROCESS_BYTES + (CLUSTER_OVERHEAD_BYTES if cluster.trainers else 0)
    return {
        OPTIMIZER_STATE: ceil(trained * (FLOAT32_BYTES + MOMENT_BYTES[moments]) / ranks),
        FROZEN_MODELS: ceil(frozen_bytes / ranks),
        GRADIENTS: ceil(trained * FLOAT32_BYTES / ranks),
        GATHERED: gathered_bytes if ranks > 1 else _estimate_model_copy_bytes(sizes),
        ACTIVATIONS: max(
            _estimate_activation_bytes(sizes, stage, cluster.context_parallel), embedding_gradient
        ),
        PROCESS: process,
    }


def _estimate_activation_bytes(sizes: ModelSizes, stage: Stage, context: int) -> int:
    """Return the bytes that a rank keeps of a line of tokens, of which it has its part. Keys and
    values are those of the whole line, in each layer that is kept."""
    local_tokens = max(
        stage.optim.micro_batch_tokens, ceil(find_max_text_tokens(sizes.recipe, stage) / context)
    )
    activations = estimate_activation_bytes(sizes, stage, local_tokens)
    if context == 1:
        return activations
    remote_kv_bytes = (
        (context - 1)
        * local_tokens
        * estimate_token_cache_bytes(sizes, DTYPE_BYTES[sizes.recipe.policy_dtype])
    )
    if stage.optim.activation_checkpointing:  # those of one layer at a time
        remote_kv_bytes //= sizes.config.num_hidden_layers
    return activations + remote_kv_bytes


def _estimate_model_copy_bytes(sizes: ModelSizes) -> int:
    """Return the bytes of the copy that a model which is not in shards computes with, where it has
    masters."""
    if sizes.recipe.lora is not None or sizes.recipe.dtype == "float32":
        return 0
    return sizes.trainable_parameters * DTYPE_BYTES[sizes.recipe.dtype]


def estimate_engine_memory(sizes: ModelSizes, stage: Stage, cluster: ClusterConfig) -> MemoryParts:
    """Return the memory of one device of an engine: weights and caches are cut over its devices.
    `max_num_seqs` is that of all engines together. vLLM takes what `engine.kv_cache_gb` says."""
    recipe, footprint = sizes.recipe, stage.memory_footprint
    size, devices = DTYPE_BYTES[recipe.dtype], cluster.tensor_parallel
    rows = ceil(min(recipe.max_num_seqs, footprint.rollouts) / max(cluster.engines, 1))
    caches = ceil(estimate_stage_cache_bytes(sizes, stage, rows) / devices)
    if recipe.engine.name == VLLM_ENGINE:
        caches = ceil(recipe.engine.settings.get("kv_cache_gb", 1.0) * 2**30)
    return {
        WEIGHTS: ceil(sizes.parameters * size / devices),
        CACHES: caches,
        PROCESS: PROCESS_BYTES,
    }


def estimate_process_memory(
    sizes: ModelSizes, stage: Stage, cluster: ClusterConfig
) -> dict[str, MemoryParts]:
    """Return the memory that each kind of process takes in a stage. Those that train and sample in
    turns have two rows, of which the larger counts."""
    trainer = estimate_rank_memory(sizes, stage, cluster)
    resident = {part: trainer[part] for part in (OPTIMIZER_STATE, FROZEN_MODELS, GATHERED)}
    if not cluster.trainers and not cluster.engines:
        return _estimate_single_process_memory(sizes, stage, trainer, resident)
    if stage.kind != "rl":
        return {"trainer": trainer}
    engine = estimate_engine_memory(sizes, stage, cluster)
    if not cluster.colocate:
        return {"trainer": trainer, "engine": engine}
    del resident[GATHERED]
    return {"trainer, training": trainer, "trainer, sampling": resident | engine}


def _estimate_single_process_memory(
    sizes: ModelSizes, stage: Stage, trainer: MemoryParts, resident: MemoryParts
) -> dict[str, MemoryParts]:
    """Return the memory of the run's own process, which trains and samples with one model;
    `runs/memory.py` has its sum. Where it does both at once, the engine has a copy of what is
    trained."""
    recipe, footprint = sizes.recipe, stage.memory_footprint
    frozen = sizes.parameters * DTYPE_BYTES[recipe.dtype] * footprint.frozen_simulators
    trainer[FROZEN_MODELS] += frozen
    resident[FROZEN_MODELS] += frozen
    rows = min(recipe.max_num_seqs, footprint.rollouts)
    caches = (1 + footprint.frozen_simulators) * estimate_stage_cache_bytes(sizes, stage, rows)
    if footprint.concurrent_sampling:
        copied = sizes.trainable_parameters * DTYPE_BYTES[recipe.policy_dtype]
        return {"process": trainer | {WEIGHTS: copied, CACHES: caches}}
    if not rows:
        return {"process": trainer}
    sampling = {**resident, CACHES: caches, PROCESS: PROCESS_BYTES}
    return {"process, training": trainer, "process, sampling": sampling}
