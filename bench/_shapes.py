"""Shapes of models with random weights, for measurements."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3Config


class Shape(StrEnum):
    SMALL = "small"
    SMOLLM2 = "smollm2"
    SMOLLM2_360M = "smollm2-360m"


def make_model(shape: Shape, features: int, layers: int, words: int) -> Any:
    """Return a model in float32 on the device that TRL uses as well. FEATURES, LAYERS and WORDS are
    of the small shape."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    config: PreTrainedConfig
    if shape in _SMOLLM2_SIZES:
        config = smollm2(*_SMOLLM2_SIZES[shape])
    else:
        config = small(features, layers, words)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(device)


def small(features: int, layers: int, words: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=words,
        hidden_size=features,
        intermediate_size=3 * features,
        num_hidden_layers=layers,
        num_attention_heads=features // 32,
        num_key_value_heads=features // 32,
        head_dim=32,
        max_position_embeddings=16384,
        tie_word_embeddings=True,
    )


def smollm2(features: int, layers: int) -> LlamaConfig:
    """Return the configuration of a SmolLM2 with 135M or 360M parameters."""
    heads = features // 64
    return LlamaConfig(
        vocab_size=49152,
        hidden_size=features,
        intermediate_size=features * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 3,
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )


_SMOLLM2_SIZES = {Shape.SMOLLM2: (576, 30), Shape.SMOLLM2_360M: (960, 32)}
