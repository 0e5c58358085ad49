"""The first model of a run that is about a world, where its recipe names none."""

from __future__ import annotations

from pathlib import Path

from fieldcraft.dialects import dialect_class
from fieldcraft.runs.inputs import Inputs, WorldInputs
from fieldcraft.train.checkpoint import save_weights
from fieldcraft.train.scratch import new_model, new_tokenizer


def write_first_model(inputs: Inputs, folder: Path) -> None:
    """Write a random model, with a tokenizer for the texts of the world."""
    assert isinstance(inputs, WorldInputs), "a recipe with files of the user's names a model"
    recipe, world = inputs.recipe, inputs.world
    tokenizer = new_tokenizer(
        world.tokenizer_texts(dialect_class(recipe.dialect).tags), world.syllables
    )
    model = new_model(
        tokenizer,
        layers=recipe.scratch.layers,
        width=recipe.scratch.width,
        heads=recipe.scratch.heads,
        seed=recipe.seed,
    )
    save_weights(folder, model, tokenizer)
