"""Rules between the cluster section of a recipe and its other sections."""

from __future__ import annotations

from fieldcraft.config.names import LOCAL_ENGINE, VLLM_ENGINE
from fieldcraft.config.recipe import Recipe
from fieldcraft.types import UserError


def require_valid_cluster(recipe: Recipe) -> None:
    """Raise UserError for processes that the recipe does not use, or that require others."""
    _require_plain_optimizer(recipe)
    _require_valid_engines(recipe)


def _require_plain_optimizer(recipe: Recipe) -> None:
    """Raise UserError for optimisers that sharded trainers do not support: only float32 moments can
    be sharded."""
    for name, stage in recipe.stages.items():
        moments = stage.optim.optimizer_state
        if recipe.cluster.trainers and moments != "float32":
            raise UserError(
                f"stage '{name}' has optim.optimizer_state={moments}, and cluster.trainers="
                f"{recipe.cluster.trainers} each hold a shard of float32 moments, so set it to"
                " float32."
            )


def _require_valid_engines(recipe: Recipe) -> None:
    """Raise UserError for an engine that is not one of the two built-in kinds, because Ray starts
    no others."""
    if recipe.cluster.engines and recipe.engine.name not in (LOCAL_ENGINE, VLLM_ENGINE):
        raise UserError(
            f"cluster.engines={recipe.cluster.engines} starts engines of the kinds local and vllm,"
            f" and engine is '{recipe.engine.name}': use one of these, or cluster.engines=0."
        )
    devices = recipe.cluster.tensor_parallel
    if devices > 1 and recipe.engine.name != VLLM_ENGINE:
        raise UserError(
            f"cluster.tensor_parallel={devices} is for engine=vllm, and engine={recipe.engine.name}"
            " computes on one device: change one of the two."
        )
    if recipe.cluster.engines and "urls" in recipe.engine.settings:
        raise UserError(
            f"cluster.engines={recipe.cluster.engines} starts servers, and engine.urls names some"
            " that are already running: leave out one of the two."
        )
    needs_sampling = (
        any(s.kind == "rl" for s in recipe.stages.values()) or recipe.evaluation.periodic
    )
    if recipe.cluster.trainers and needs_sampling and not recipe.cluster.engines:
        raise UserError(
            f"cluster.trainers={recipe.cluster.trainers} needs engines to sample from the trained"
            " model: set cluster.engines to 1 or more."
        )
