"""Check whether a model was trained with tools, by a run's stages or before the run."""

from __future__ import annotations

from pathlib import Path

from fieldcraft.config.lineage import was_trained_with_tools
from fieldcraft.config.recipe import Recipe
from fieldcraft.recipes.exported import read_trained_with_tools
from fieldcraft.runs.folder import find_model


def ever_trained_with_tools(recipe: Recipe, name: str) -> bool:
    """Return whether a model in an evaluation was ever trained with tools, by a stage of the recipe
    or of an earlier run whose model this recipe starts from."""
    return was_trained_with_tools(recipe, name) or (
        recipe.model is not None and is_agent(recipe.model)
    )


def is_agent(model: Path) -> bool:
    """Return whether a checkpoint was trained with tools, according to its run or, if exported, its
    `fieldcraft.json`. Other checkpoints are assumed not to be agents."""
    if not (model / "config.json").exists():  # of a deleted earlier run
        return False
    run, folder = find_model(model)
    if run is not None:
        return ever_trained_with_tools(run.recipe, folder.absolute().parent.name)
    return read_trained_with_tools(folder)
