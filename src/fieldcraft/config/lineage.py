"""Ancestry of a recipe's stages: training of the model of an evaluation."""

from __future__ import annotations

from fieldcraft.config.names import get_display_name
from fieldcraft.config.recipe import Recipe, get_first_model, list_toolless_datasets


def get_stage_ancestry(recipe: Recipe, name: str) -> list[str]:
    """Return the stages that trained the model of a stage or a workflow, in order."""
    starts, before = {}, "start"
    for stage, settings in recipe.stages.items():
        starts[stage] = settings.start_from or before
        before = stage
    current = (
        get_first_model(recipe)
        if name in map(get_display_name, recipe.evaluation.workflows)
        else name
    )
    ancestry: list[str] = []
    while current in starts:  # neither `start` nor a user-provided model is a stage
        ancestry.insert(0, current)
        current = starts[current]
    return ancestry


def was_trained_with_tools(recipe: Recipe, name: str) -> bool:
    """Return whether an evaluated model was trained with tools. All stages have tools, except those
    on a data set without tools; a user-provided model has no stages.
    """
    without_tools = list_toolless_datasets(recipe)
    data = (
        getattr(recipe.stages[stage], "dataset", None) for stage in get_stage_ancestry(recipe, name)
    )
    return any(found not in without_tools for found in data)
