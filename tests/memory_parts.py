"""Recipes with the shapes of a small model, as the formulas of memory read them."""

from types import SimpleNamespace
from typing import Any

from transformers import Qwen2Config

from fieldcraft.recipes.loading import load_recipe

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


def sizes(*overrides: str) -> Any:
    """Return a setup with the fields that the formulas read."""
    recipe = load_recipe("autocoa-mini", list(overrides))
    config = Qwen2Config(**SHAPE)
    return SimpleNamespace(
        recipe=recipe,
        config=config,
        parameters=PARAMETERS,
        trainable_parameters=PARAMETERS,
        has_weights=True,
    )
