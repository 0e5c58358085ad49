"""Sizes of small models, and positions that depend on the length of a text; for tests."""

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "long_factor": [4.0] * 4,
    "short_factor": [1.0] * 4,
    "original_max_position_embeddings": 16,
}
