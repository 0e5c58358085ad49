"""The tree of a recipe's stages: what the model of an evaluation went through."""

from __future__ import annotations

from fieldcraft.config.names import short
from fieldcraft.config.recipe import Recipe, first_model, toolless


def lineage(recipe: Recipe, name: str) -> list[str]:
    """Return the stages that the model of a stage, or that of a workflow, went through, first to
    last."""
    starts, before = {}, "start"
    for stage, settings in recipe.stages.items():
        starts[stage] = settings.start or before
        before = stage
    at = first_model(recipe) if name in map(short, recipe.evaluation.workflows) else name
    found: list[str] = []
    while at in starts:  # `start`, and a model of the user's, are no stages
        found.insert(0, at)
        at = starts[at]
    return found


def met_tools(recipe: Recipe, name: str) -> bool:
    """Return whether any training of an evaluated model showed it a tool, or let it use one. A
    stage does, but for one over a data set without tools; a model of the user's has had no stage.
    """
    without = toolless(recipe)
    data = (getattr(recipe.stages[stage], "data", None) for stage in lineage(recipe, name))
    return any(found not in without for found in data)
