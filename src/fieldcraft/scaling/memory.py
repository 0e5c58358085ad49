"""Peak memory of every process of a run, by purpose.

It extends the estimates of `runs/memory.py` to sharded models and to engines with dedicated
devices. docs/lab-notes/scaling.md has the formulas.
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

MemoryParts = dict[str, int]  # purpose: bytes
OPTIMIZER_STATE, FROZEN_MODELS, GRADIENTS = "masters and moments", "read only", "gradients"
GATHERED, ACTIVATIONS, PROCESS = "gathered", "activations", "process"
WEIGHTS, CACHES = "weights", "caches"
# Memory of Ray and gloo in a trainer: the mean of the amount missing in bench/ranks.py without it.
CLUSTER_OVERHEAD_BYTES = 130_000_000


def count_embedding_parameters(config: Any) -> int:
    """Return the number of parameters outside the layers: the input embedding and, unless tied, the
    output embedding."""
    matrices = 1 if config.tie_word_embeddings else 2
    return int(matrices * config.vocab_size * config.hidden_size)


def estimate_rank_memory(sizes: ModelSizes, stage: Stage, cluster: ClusterConfig) -> MemoryParts:
    """Return the memory of one trainer. Trained weights, read-only weights and gradients are
    sharded evenly. Gathered at the same time are two layers (the current and the prefetched one),
    the gradient of one, and all weights outside the layers. The gradient of the latter is unsharded
    only after the activations are freed, so the larger of the two counts."""
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
    # Moments of other kinds are not sharded.
    moments = "float32" if cluster.trainers else stage.optim.optimizer_state
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
    """Return the activation bytes of a rank for its shard of a packed sequence. Keys and values of
    the whole sequence count, in each layer whose activations are stored."""
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
    if stage.optim.activation_checkpointing:  # one layer at a time
        remote_kv_bytes //= sizes.config.num_hidden_layers
    return activations + remote_kv_bytes


def _estimate_model_copy_bytes(sizes: ModelSizes) -> int:
    """Return the bytes of the rounded copy of an unsharded model that has master weights."""
    if sizes.recipe.lora is not None or sizes.recipe.dtype == "float32":
        return 0
    return sizes.trainable_parameters * DTYPE_BYTES[sizes.recipe.dtype]


def estimate_engine_memory(sizes: ModelSizes, stage: Stage, cluster: ClusterConfig) -> MemoryParts:
    """Return the memory of one device of an engine: weights and caches are split over its devices.
    `max_num_seqs` applies to all engines together. The cache of vLLM is `engine.kv_cache_gb`."""
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
    """Return the memory of each kind of process in a stage. Processes that alternate between
    training and sampling have two entries, of which the larger counts."""
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
    `runs/memory.py` computes the sum. If it does both concurrently, the engine has a copy of the
    trained weights."""
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
