"""Estimated time of a recipe's stages on a cluster, by the formulas of `costs.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from fieldcraft.config.cluster import ClusterConfig
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.stages import Contrastive, Stage, SupervisedConfig
from fieldcraft.runs.memory import (
    DTYPE_BYTES,
    ModelSizes,
    estimate_cache_bytes,
    find_max_text_tokens,
)
from fieldcraft.scaling.costs import (
    ForwardPasses,
    ModelShape,
    Roofline,
    TrainingCost,
    estimate_broadcast_seconds,
)
from fieldcraft.scaling.devices import Device
from fieldcraft.scaling.steps import RolloutLoad, estimate_sampling_seconds

Bottleneck = Literal[
    "training compute", "communication between trainers", "sampling", "the longest rollout"
]
SPEEDUP_ADVICE: dict[Bottleneck, str] = {  # advice
    "training compute": "more trainers (cluster.trainers)",
    "communication between trainers": "a higher optim.micro_batch_tokens: weights are gathered"
    " less often",
    "sampling": "more engines (cluster.engines), or a higher max_num_seqs where memory allows it",
    "the longest rollout": "a higher async.max_staleness, or more questions in a step",
}


@dataclass(frozen=True, slots=True)
class TypicalText:
    """Mean text of the run: its number of tokens under the budget of the recipe, the share of them
    that the policy writes, and the seconds of its tool calls."""

    tokens: float
    policy_share: float
    tool_seconds: float


@dataclass(frozen=True, slots=True)
class StageTime:
    """Times of a stage in seconds per step, and the number of steps; None if it depends on data
    that were not read."""

    name: str
    steps: int | None
    sampling_seconds: float
    training_seconds: float
    broadcast_seconds: float
    step_seconds: float
    bottleneck: Bottleneck

    @property
    def total_seconds(self) -> float | None:
        return None if self.steps is None else self.steps * self.step_seconds


def make_model_shape(sizes: ModelSizes) -> ModelShape:
    """Return the shape of the model for matrix products: without the input embedding, unless it is
    tied to the output layer."""
    config, recipe = sizes.config, sizes.recipe
    embedding = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    size = DTYPE_BYTES[recipe.dtype]
    tokens = recipe.budget.max_context_tokens
    return ModelShape(
        sizes.parameters - embedding,
        config.num_hidden_layers,
        config.hidden_size,
        size,
        estimate_cache_bytes(sizes, 1, size, tokens) // tokens,
    )


def make_forward_passes(recipe: Recipe, stage: Stage) -> ForwardPasses:
    """Return the forward passes of all models per trained token."""
    footprint = stage.memory_footprint
    frozen_models = footprint.references + footprint.teachers
    if isinstance(stage, Rl):
        frozen_models += stage.sampler_is_cap is not None or stage.sampler_reject is not None
    return ForwardPasses(1 + footprint.critics, frozen_models, stage.optim.activation_checkpointing)


@dataclass(frozen=True)
class StageTimeEstimator:
    """Estimator of the times of one recipe on one kind of device."""

    sizes: ModelSizes
    device: Device
    typical_text: TypicalText
    count_examples: Callable[[Stage], int | None] = lambda _: None

    def make_training_cost(self, stage: Stage, cluster: ClusterConfig) -> TrainingCost:
        return TrainingCost(self.device, max(cluster.trainers, 1), stage.optim.micro_batch_tokens)

    def estimate_periods(
        self, name: str, stage: Stage, cluster: ClusterConfig
    ) -> Iterator[StageTime]:
        """Yield the times of a stage, or of each of its periods if its budget changes."""
        periods = stage.budget_periods(self.sizes.recipe.budget)
        if len(periods) < 2:
            yield self.with_longest_budget(stage).estimate(name, stage, cluster)
            return
        for period in periods:
            estimate = self._with_budget(period.budget.max_context_tokens).estimate(
                name, stage, cluster
            )
            steps = f"{name}, steps {period.start_step + 1} to {period.end_step}"
            yield replace(estimate, name=steps, steps=period.end_step - period.start_step)

    def with_longest_budget(self, stage: Stage) -> StageTimeEstimator:
        """Return the estimator for texts under the largest budget of a stage."""
        return self._with_budget(find_max_text_tokens(self.sizes.recipe, stage))

    def _with_budget(self, total: int) -> StageTimeEstimator:
        """Return the estimator for another budget, with text lengths scaled in proportion."""
        tokens = self.typical_text.tokens * total / self.sizes.recipe.budget.max_context_tokens
        return replace(self, typical_text=replace(self.typical_text, tokens=tokens))

    def estimate(self, name: str, stage: Stage, cluster: ClusterConfig) -> StageTime:
        """Return the times of a stage, and its bottleneck."""
        shape, cost = make_model_shape(self.sizes), self.make_training_cost(stage, cluster)
        passes = make_forward_passes(self.sizes.recipe, stage)
        tokens = self._count_trained_tokens(stage)
        training = cost.step_seconds(shape, tokens, self.typical_text.tokens, passes)
        compute_seconds = cost.compute_seconds(shape, tokens, self.typical_text.tokens, passes)
        bottleneck: Bottleneck = "training compute"
        if training > compute_seconds:
            bottleneck = "communication between trainers"
        if not isinstance(stage, Rl):
            steps = None
            if isinstance(stage, SupervisedConfig):
                examples = self.count_examples(stage)
                known = stage.steps is not None or examples is not None
                steps = stage.count_steps(examples or 0) if known else None
            return StageTime(name, steps, 0.0, training, 0.0, training, bottleneck)
        sampled = self.estimate_sampling(stage, cluster)
        engines = max(cluster.engines, 1)
        longest_seconds = self._estimate_longest_rollout(stage)
        broadcast_seconds = 0.0
        if cluster.engines:
            broadcast_seconds = estimate_broadcast_seconds(shape, self.device, cost.ranks, engines)
        staleness = stage.asynchronous.max_staleness
        step_seconds = max(sampled, training) if staleness else sampled + training
        if sampled > training:
            bottleneck = "the longest rollout" if sampled <= longest_seconds * 1.001 else "sampling"
        return StageTime(
            name,
            stage.steps,
            sampled,
            training,
            broadcast_seconds,
            step_seconds + broadcast_seconds,
            bottleneck,
        )

    def estimate_sampling(self, stage: Rl, cluster: ClusterConfig) -> float:
        """Return the seconds in which the engines sample the rollouts of a step."""
        speed = Roofline(make_model_shape(self.sizes), self.device, cluster.tensor_parallel)
        engines = max(cluster.engines, 1)
        rows = ceil(self.sizes.recipe.max_num_seqs / engines)
        max_staleness = stage.asynchronous.max_staleness
        return estimate_sampling_seconds(
            speed, engines, rows, self._make_load(stage), max_staleness
        )

    def _estimate_longest_rollout(self, stage: Rl) -> float:
        """Return the sampling seconds with one engine per rollout, which more engines cannot
        reduce."""
        speed = Roofline(make_model_shape(self.sizes), self.device)
        rollouts = self._make_load(stage)
        max_staleness = stage.asynchronous.max_staleness
        return estimate_sampling_seconds(speed, rollouts.count, 1, rollouts, max_staleness)

    def _make_load(self, stage: Rl) -> RolloutLoad:
        typical_text = self.typical_text
        count = stage.questions_per_step * stage.group_size * stage.oversample_factor
        simulated = stage.observations != "real" and stage.simulator != "endpoint"
        policy_tokens = typical_text.tokens * (1.0 if simulated else typical_text.policy_share)
        tool_seconds = 0.0 if simulated else typical_text.tool_seconds
        length_ratio = self.sizes.recipe.budget.max_context_tokens / typical_text.tokens
        return RolloutLoad(
            count,
            policy_tokens,
            typical_text.tokens,
            policy_tokens * length_ratio,
            tool_seconds * length_ratio,
        )

    def _count_trained_tokens(self, stage: Stage) -> float:
        """Return the number of tokens that a step trains on."""
        if isinstance(stage, Rl):
            return (
                stage.questions_per_step
                * stage.group_size
                * stage.epochs
                * self.typical_text.tokens
            )
        texts = 2 if isinstance(stage, Contrastive) else 1
        batch = stage.batch_size if isinstance(stage, SupervisedConfig) else 1
        return texts * batch * self.typical_text.tokens
