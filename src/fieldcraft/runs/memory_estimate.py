"""Estimates of the peak memory of every process of a run, by purpose.

docs/lab-notes/scaling.md has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sections import ClusterConfig
from fieldcraft.config.stages import Stage
from fieldcraft.engine.local.block_allocator import BLOCK_TOKENS
from fieldcraft.engine.sizes import get_feed_forward_width, get_num_key_value_heads
from fieldcraft.train.output_layer import MAX_CHUNK_LOGITS

FLOAT32_BYTES = 4
# Bytes of two moments; in 8 bit, 256 numbers share a scale. The placement `cpu` moves them out of
# a full GPU.
MOMENT_BYTES = {"float32": 2 * FLOAT32_BYTES, "8bit": 2 + 2 * FLOAT32_BYTES / 256, "cpu": 0.0}
# Measured: Python with torch and transformers takes 0.4 GB, and the heap retains some freed memory.
PROCESS_BYTES = 600_000_000
# Memory of Ray and gloo in a trainer: the mean of the amount missing in bench/ranks.py without it.
CLUSTER_OVERHEAD_BYTES = 130_000_000
# Measured: copies of the logits of a chunk at the peak of a step: 1.9 for supervised stages, the
# same for reinforcement learning, or 3.0 with entropy in its loss.
LOGIT_COPIES = {"supervised": 2, "rl": 3}
DTYPE_BYTES = {"float32": FLOAT32_BYTES, "bfloat16": 2}

MemoryParts = dict[str, int]  # purpose: bytes
OPTIMIZER_STATE, FROZEN_MODELS, GRADIENTS = "masters and moments", "read only", "gradients"
GATHERED, ACTIVATIONS, PROCESS = "gathered", "activations", "process"
WEIGHTS, CACHES = "weights", "caches"


@dataclass
class ModelSizes:
    """Recipe and sizes of its first model: the inputs of the estimates."""

    recipe: Recipe
    config: Any  # transformers' text configuration
    parameters: int
    trainable_parameters: int  # of the full model, or of an adapter


# -- processes


def estimate_run_memory(sizes: ModelSizes) -> dict[str, int]:
    """Return the estimate for every part of a run in one process, in bytes."""
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
        label_stage(name): estimate_stage_memory(sizes, stage)
        for name, stage in recipe.stages.items()
    }
    return {**stages, "an evaluation": evaluation}


def label_stage(name: str) -> str:
    """Return the name of a stage among the parts of a run."""
    return f"stage '{name}'"


def estimate_stage_memory(sizes: ModelSizes, stage: Stage) -> int:
    """Return the peak memory of a stage in one process, in bytes."""
    phases = estimate_process_memory(sizes, stage, ClusterConfig())
    return max(sum(parts.values()) for parts in phases.values())


def estimate_process_memory(
    sizes: ModelSizes, stage: Stage, cluster: ClusterConfig
) -> dict[str, MemoryParts]:
    """Return the memory of each kind of process in a stage. Processes that alternate between
    training and sampling have two entries, of which the larger counts."""
    trainer = estimate_rank_memory(sizes, stage, cluster)
    if not cluster.trainers and not cluster.engines:
        return _estimate_single_process_memory(sizes, stage, trainer)
    if stage.kind != "rl":
        return {"trainer": trainer}
    engine = estimate_engine_memory(sizes, stage, cluster)
    if not cluster.colocate:
        return {"trainer": trainer, "engine": engine}
    resident = {part: trainer[part] for part in (OPTIMIZER_STATE, FROZEN_MODELS)}
    return {"trainer, training": trainer, "trainer, sampling": resident | engine}


def _estimate_single_process_memory(
    sizes: ModelSizes, stage: Stage, training: MemoryParts
) -> dict[str, MemoryParts]:
    """Return the memory of the run's own process, which trains and samples with one model. Sampling
    stores the preceding caches of the rollouts, but no gradients and activations. If the process
    does both concurrently, the engine has a copy of the trained weights."""
    recipe, footprint = sizes.recipe, stage.memory_footprint
    rows = min(recipe.max_num_seqs, footprint.rollouts)
    caches = (1 + footprint.frozen_simulators) * estimate_stage_cache_bytes(sizes, stage, rows)
    if footprint.concurrent_sampling:
        copied = sizes.trainable_parameters * DTYPE_BYTES[recipe.policy_dtype]
        return {"process": training | {WEIGHTS: copied, CACHES: caches}}
    if not rows:
        return {"process": training}
    resident = (OPTIMIZER_STATE, FROZEN_MODELS, GATHERED, PROCESS)
    sampling = {part: training[part] for part in resident} | {CACHES: caches}
    return {"process, training": training, "process, sampling": sampling}


def estimate_rank_memory(sizes: ModelSizes, stage: Stage, cluster: ClusterConfig) -> MemoryParts:
    """Return the memory of one trainer. Trained weights, read-only weights and gradients are
    sharded evenly. Gathered at the same time are two layers (the current and the prefetched one),
    the gradient of one, and all weights outside the layers. The gradient of the latter is unsharded
    only after the activations are freed, so the larger of the two counts."""
    recipe, ranks = sizes.recipe, max(cluster.trainers, 1)
    size, trained = DTYPE_BYTES[recipe.dtype], count_trained_parameters(sizes, stage)
    embedding = count_embedding_parameters(sizes.config)
    layer = (sizes.parameters - embedding) // sizes.config.num_hidden_layers
    if ranks > 1:
        gathered = (embedding + 2 * layer) * size + layer * FLOAT32_BYTES
    else:  # the rounded copy of a model that has master weights
        gathered = trained * size if recipe.lora is None and recipe.dtype != "float32" else 0
    # Moments of other kinds are not sharded.
    moments = "float32" if cluster.trainers else stage.optim.optimizer_state
    embedding_gradient = 0 if ranks == 1 else embedding * (size + FLOAT32_BYTES)
    activations = _estimate_rank_activation_bytes(sizes, stage, cluster.context_parallel)
    return {
        OPTIMIZER_STATE: ceil(trained * (FLOAT32_BYTES + MOMENT_BYTES[moments]) / ranks),
        FROZEN_MODELS: ceil(_estimate_frozen_bytes(sizes, stage, cluster) / ranks),
        GRADIENTS: ceil(trained * FLOAT32_BYTES / ranks),
        GATHERED: gathered,
        ACTIVATIONS: max(activations, embedding_gradient),
        PROCESS: PROCESS_BYTES + (CLUSTER_OVERHEAD_BYTES if cluster.trainers else 0),
    }


def estimate_engine_memory(sizes: ModelSizes, stage: Stage, cluster: ClusterConfig) -> MemoryParts:
    """Return the memory of one device of an engine: weights and caches are split over its devices.
    `max_num_seqs` applies to all engines together. The cache of vLLM is `engine.kv_cache_gb`."""
    recipe, footprint = sizes.recipe, stage.memory_footprint
    size, devices = DTYPE_BYTES[recipe.dtype], cluster.tensor_parallel
    rows = ceil(min(recipe.max_num_seqs, footprint.rollouts) / max(cluster.engines, 1))
    caches = ceil(estimate_stage_cache_bytes(sizes, stage, rows) / devices)
    if (default_gb := recipe.engine.features.kv_cache_gb) is not None:
        caches = ceil(recipe.engine.settings.get("kv_cache_gb", default_gb) * 2**30)
    return {
        WEIGHTS: ceil(sizes.parameters * size / devices),
        CACHES: caches,
        PROCESS: PROCESS_BYTES,
    }


# -- weights


def count_trained_parameters(sizes: ModelSizes, stage: Stage) -> int:
    """Return the number of parameters that a stage trains, including those of critics."""
    return sizes.trainable_parameters + sizes.parameters * stage.memory_footprint.critics


def count_embedding_parameters(config: Any) -> int:
    """Return the number of parameters outside the layers: the input embedding and, unless tied, the
    output embedding."""
    matrices = 1 if config.tie_word_embeddings else 2
    return int(matrices * config.vocab_size * config.hidden_size)


def estimate_weight_bytes(sizes: ModelSizes, stage: Stage) -> int:
    """Return the bytes of trained weights with their optimiser state, and of read-only weights,
    without gradients, in one process."""
    parts = estimate_rank_memory(sizes, stage, ClusterConfig())
    return parts[OPTIMIZER_STATE] + parts[FROZEN_MODELS] + parts[GATHERED]


def _estimate_frozen_bytes(sizes: ModelSizes, stage: Stage, cluster: ClusterConfig) -> int:
    """Return the bytes of read-only weights. A teacher is assumed to be as large as the model
    itself. The reference of an adapter is a copy of the adapter. Simulators are only counted in a
    run of one process."""
    footprint, model = stage.memory_footprint, sizes.parameters * DTYPE_BYTES[sizes.recipe.dtype]
    frozen = footprint.teachers * model
    if not cluster.trainers and not cluster.engines:
        frozen += footprint.frozen_simulators * model
    if sizes.recipe.lora is None:
        return frozen + footprint.references * model
    adapter = sizes.trainable_parameters * FLOAT32_BYTES
    return frozen + model + footprint.references * adapter


# -- activations and caches


def estimate_activation_bytes(sizes: ModelSizes, stage: Stage, tokens: int) -> int:
    """Return the bytes that a step stores for a micro-batch of `tokens` tokens.

    Activations have the recipe's data type, and logits are float32. With adapters activations are
    also float32, because an adapter stores its own copy of its inputs. For the backward pass, a
    layer stores per token: two normalised inputs and their originals (4 h), queries, keys, values
    and the attention's output (4 h), the residual stream (2 h) and four products of the
    feed-forward width f. Attention scores are not stored (fused kernels). With checkpointing every
    layer stores its input, and one at a time all of the above. Logits exist for one chunk of the
    tokens at a time, in several copies: raw, normalised, their gradients. The gradient of a rounded
    output layer exists together with its float32 sum over the chunks.
    """
    config, recipe = sizes.config, sizes.recipe
    layer = 10 * config.hidden_size + 4 * get_feed_forward_width(config)
    stored = config.num_hidden_layers * layer
    if stage.optim.activation_checkpointing:
        stored = config.num_hidden_layers * config.hidden_size + layer
    logits = LOGIT_COPIES[stage.kind] + stage.memory_footprint.logit_copies
    chunk = min(tokens * config.vocab_size, MAX_CHUNK_LOGITS)
    output_gradient = 0
    if recipe.lora is None and recipe.dtype != "float32":
        output_size = config.vocab_size * config.hidden_size
        output_gradient = output_size * (FLOAT32_BYTES + DTYPE_BYTES[recipe.dtype])
    activations = tokens * stored * DTYPE_BYTES[recipe.policy_dtype]
    return activations + logits * chunk * FLOAT32_BYTES + output_gradient


def _estimate_rank_activation_bytes(sizes: ModelSizes, stage: Stage, context: int) -> int:
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
