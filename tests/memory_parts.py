"""Recipes with the shapes of a small model, as the formulas of memory read them."""

from typing import Any

from transformers import Qwen2Config

from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.memory_estimate import ModelSizes

LAYERS, WIDTH, WORDS = 4, 64, 1000
EMBEDDINGS = 2 * WIDTH * WORDS
PARAMETERS = EMBEDDINGS + LAYERS * 50_000
SHAPE: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}


def sizes(*overrides: str) -> ModelSizes:
    """Return the inputs of the formulas."""
    recipe = load_recipe("autocoa-mini", list(overrides))
    return ModelSizes(recipe, Qwen2Config(**SHAPE), PARAMETERS, PARAMETERS)
