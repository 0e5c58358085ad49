"""The tree of a recipe's stages: what the model of an evaluation went through."""

from __future__ import annotations

from fieldcraft.config.names import get_display_name
from fieldcraft.config.recipe import Recipe, get_first_model, list_toolless_datasets


def get_stage_ancestry(recipe: Recipe, name: str) -> list[str]:
    """Return the stages that the model of a stage, or that of a workflow, went through, first to
    last."""
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
    while current in starts:  # `start`, and a model of the user's, are no stages
        ancestry.insert(0, current)
        current = starts[current]
    return ancestry


def was_trained_with_tools(recipe: Recipe, name: str) -> bool:
    """Return whether any training of an evaluated model showed it a tool, or let it use one. A
    stage does, but for one over a data set without tools; a model of the user's has had no stage.
    """
    without_tools = list_toolless_datasets(recipe)
    data = (
        getattr(recipe.stages[stage], "dataset", None) for stage in get_stage_ancestry(recipe, name)
    )
    return any(found not in without_tools for found in data)
