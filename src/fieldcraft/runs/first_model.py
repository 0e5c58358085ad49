"""Creation of the first model of a run with a world whose recipe names no model."""

from __future__ import annotations

from pathlib import Path

import torch

from fieldcraft.config.sections import TinyModelConfig
from fieldcraft.dialects import resolve_dialect
from fieldcraft.runs.build import make_prompt_only_tools
from fieldcraft.runs.dialects import choose_dialect
from fieldcraft.runs.memory import format_gb, read_free_memory
from fieldcraft.runs.memory_estimate import FLOAT32_BYTES
from fieldcraft.runs.sources import DataSource
from fieldcraft.train.saving import save_model
from fieldcraft.train.scratch import (
    count_parameters,
    iter_tool_texts,
    make_tiny_model,
    make_tokenizer,
)
from fieldcraft.types import UserError


def write_first_model(data_source: DataSource, folder: Path) -> None:
    """Write a randomly initialised model, with a tokenizer for the texts of the world. Raises
    UserError for a model that exceeds the memory."""
    assert data_source.world is not None, "a recipe with user-provided files names a model"
    recipe, world = data_source.recipe, data_source.world
    tags = resolve_dialect(choose_dialect(recipe).name).tags
    texts = list(world.tokenizer_texts(tags))
    if "<tool_call>" in tags:  # the prompt shows the tools
        texts += iter_tool_texts(tool.schema for tool in make_prompt_only_tools(recipe))
    tokenizer = make_tokenizer(texts, world.syllables)
    _require_memory(recipe.tiny_model, len(tokenizer))
    model = make_tiny_model(
        tokenizer,
        layers=recipe.tiny_model.layers,
        width=recipe.tiny_model.width,
        heads=recipe.tiny_model.heads,
        seed=recipe.seed,
    )
    save_model(folder, model, tokenizer)


def _require_memory(shape: TinyModelConfig, vocabulary: int) -> None:
    parameters = count_parameters(vocabulary, shape.layers, shape.width)
    available = read_free_memory(torch.device("cpu"))
    if parameters * FLOAT32_BYTES > available:
        raise UserError(
            f"a model of tiny_model.layers={shape.layers} and tiny_model.width={shape.width} has"
            f" {parameters:,} parameters, which take {format_gb(parameters * FLOAT32_BYTES)} of"
            f" memory, but {format_gb(available)} are available: lower them."
        )
