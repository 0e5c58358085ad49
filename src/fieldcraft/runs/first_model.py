"""The first model of a run that is about a world, where its recipe names none."""

from __future__ import annotations

from pathlib import Path

import torch

from fieldcraft.config.sections import Scratch
from fieldcraft.dialects import dialect_class
from fieldcraft.runs.build import closed_tools
from fieldcraft.runs.dialects import choose_dialect
from fieldcraft.runs.inputs import WorldInputs
from fieldcraft.runs.memory import FLOAT, free_memory, giga
from fieldcraft.runs.sources import Inputs
from fieldcraft.train.saving import save_model
from fieldcraft.train.scratch import count_parameters, new_model, new_tokenizer, tool_texts
from fieldcraft.types import UserError


def write_first_model(inputs: Inputs, folder: Path) -> None:
    """Write a random model, with a tokenizer for the texts of the world. Raises UserError for one
    that is larger than the memory."""
    assert isinstance(inputs, WorldInputs), "a recipe with files of the user's names a model"
    recipe, world = inputs.recipe, inputs.world
    tags = dialect_class(choose_dialect(recipe).name).tags
    texts = list(world.tokenizer_texts(tags))
    if "<tool_call>" in tags:  # the prompt shows the tools
        texts += tool_texts(tool.schema for tool in closed_tools(recipe))
    tokenizer = new_tokenizer(texts, world.syllables)
    _refuse_too_large(recipe.scratch, len(tokenizer))
    model = new_model(
        tokenizer,
        layers=recipe.scratch.layers,
        width=recipe.scratch.width,
        heads=recipe.scratch.heads,
        seed=recipe.seed,
    )
    save_model(folder, model, tokenizer)


def _refuse_too_large(shape: Scratch, vocabulary: int) -> None:
    parameters = count_parameters(vocabulary, shape.layers, shape.width)
    there = free_memory(torch.device("cpu"))
    if parameters * FLOAT > there:
        raise UserError(
            f"a model of scratch.layers={shape.layers} and scratch.width={shape.width} has"
            f" {parameters:,} parameters, which take {giga(parameters * FLOAT)} of memory, and"
            f" there are {giga(there)}: lower them."
        )
