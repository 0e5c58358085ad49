"""Check of a model's training with tools: by a run's stages, or before the run began with it."""

from __future__ import annotations

from pathlib import Path

from fieldcraft.config.lineage import was_trained_with_tools
from fieldcraft.config.recipe import Recipe
from fieldcraft.recipes.exported import read_trained_with_tools
from fieldcraft.runs.folder import find_model


def ever_trained_with_tools(recipe: Recipe, name: str) -> bool:
    """Return whether any training of an evaluated model showed it a tool, or let it use one: a
    stage of the recipe, or one of an earlier run whose model this recipe begins with."""
    return was_trained_with_tools(recipe, name) or (
        recipe.model is not None and is_agent(recipe.model)
    )


def is_agent(model: Path) -> bool:
    """Return whether a checkpoint was trained with tools here, as the run around it says, or its
    `fieldcraft.json` where it was exported. Of others nothing is known, so they are no agents."""
    if not (model / "config.json").exists():  # an earlier run's, which is gone
        return False
    run, folder = find_model(model)
    if run is not None:
        return ever_trained_with_tools(run.recipe, folder.absolute().parent.name)
    return read_trained_with_tools(folder)
