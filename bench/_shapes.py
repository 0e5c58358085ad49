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
    config = _CONFIGS[shape]() if shape in _CONFIGS else small(features, layers, words)
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


def smollm2() -> PreTrainedConfig:
    """Return the configuration of SmolLM2-135M."""
    return LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )


def smollm2_360m() -> PreTrainedConfig:
    """Return the configuration of SmolLM2-360M."""
    return LlamaConfig(
        vocab_size=49152,
        hidden_size=960,
        intermediate_size=2560,
        num_hidden_layers=32,
        num_attention_heads=15,
        num_key_value_heads=5,
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )


_CONFIGS = {Shape.SMOLLM2: smollm2, Shape.SMOLLM2_360M: smollm2_360m}
