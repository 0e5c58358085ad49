"""Small twins of the class of a large model, and the errors that they find before a run."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig

from fieldcraft.train.twin import MAX_TWIN_PARAMETERS, make_twin, require_twin_parity
from fieldcraft.types import UserError

LARGE = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 4096,
}
EXPERTS = {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "long_factor": [4.0] * 64,
    "short_factor": [1.0] * 64,
    "original_max_position_embeddings": 4096,
}


def large(name: str, **keys: Any) -> Any:
    return AutoConfig.for_model(name, **LARGE, **keys)


SOUND = {
    "qwen2": {"eos_token_id": [151645, 151643], "tie_word_embeddings": False},
    "qwen3": {"head_dim": 128, "layer_types": ["full_attention"] * 28},
    "llama": {"head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "mistral": {"sliding_window": None, "head_dim": 128},
    "phi3": {"rope_parameters": LONG, "pad_token_id": 0},
    "qwen3_moe": {**EXPERTS, "head_dim": 128},
    "mixtral": {"num_local_experts": 8},
}


@pytest.mark.parametrize("name", SOUND)
def test_a_large_model_has_a_small_twin_which_is_computed_plainly(name: str) -> None:
    config = large(name, **SOUND[name])
    twin = make_twin(config)
    assert sum(p.numel() for p in twin.parameters()) < MAX_TWIN_PARAMETERS / 10
    assert twin.config.num_hidden_layers == 2
    assert twin.config.to_dict().keys() == config.to_dict().keys()
    require_twin_parity(config)


def test_the_twin_is_always_the_same() -> None:
    one, other = (make_twin(large("llama")).state_dict() for _ in range(2))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("bert", r"BertLMHeadModel is not supported .* packed batch .* by [\d.]+ nats"),
        ("doge", "DogeAttention cannot be trained, because it adds its own attention mask"),
        ("gemma2", "Gemma2Attention cannot be trained, because it uses softcap"),
        ("nemotron", "its layers do not pass the sequence boundaries"),
    ],
)
def test_what_a_trainer_refuses_is_refused_by_the_twin(name: str, why: str) -> None:
    kinds = {"layer_types": ["full_attention"] * 28} if name == "gemma2" else {}
    with pytest.raises(UserError, match=why):
        require_twin_parity(large(name, **kinds))


def test_one_without_a_twin_is_left_to_the_trainer() -> None:
    config = AutoConfig.for_model("gemma3")  # also accepts images
    assert make_twin(config) is None
    require_twin_parity(config)
