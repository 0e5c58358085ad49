"""Twins: small random models of the same class as a large one, for parity checks.

A deviation from a plain forward pass shows in the twin as well, within a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.local.parity import require_cache_parity
from fieldcraft.engine.parity import compute_reference_logprobs, make_probe_texts
from fieldcraft.train.output_layer import OutputLayer
from fieldcraft.train.packed_attention import enable_packed_attention
from fieldcraft.train.parallel import SINGLE_PROCESS
from fieldcraft.train.parity import require_packed_parity
from fieldcraft.train.train_mode import remove_dropout
from fieldcraft.types import UserError

MAX_TWIN_PARAMETERS = 8_000_000  # maximum of a twin, and of a model that is compared itself
WEIGHT_NOISE_STD = 0.15  # added to its weights, which are too small by default
# Configuration keys by the maximum value of a twin.
MAX_SIZE_KEYS: dict[int, str] = {
    400: "vocab_size vocab_size_per_layer_input",
    64: "hidden_size d_model n_embd dim word_embed_proj_dim embedding_size"
    " moe_shared_expert_intermediate_size hidden_size_per_layer_input",
    128: "intermediate_size ffn_dim n_inner d_ff ffn_hidden_size dense_intermediate_size"
    " intermediate_size_mlp",
    32: "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size q_lora_rank",
    16: "head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim kv_lora_rank rotary_dim kv_channels",
    8: "sliding_window",
    4: "num_attention_heads n_head n_heads num_heads num_experts num_local_experts n_routed_experts"
    " moe_num_experts",
    2: "num_hidden_layers n_layer n_layers num_layers num_key_value_heads num_kv_heads n_head_kv"
    " num_experts_per_tok moe_k moe_topk moe_top_k eos_token_id bos_token_id pad_token_id",
    1: "n_group topk_group first_k_dense_replace n_shared_experts num_shared_experts",
}
TWIN_SIZES = {key: size for size, keys in MAX_SIZE_KEYS.items() for key in keys.split()}
# Configurations and models with inconsistent sizes raise arbitrary exceptions.
SIZE_ERRORS = Exception


def require_twin_parity(config: PreTrainedConfig) -> None:
    """Raise UserError, with the difference, if the training or sampling path of a model's twin
    differs from plain forward passes. Models without a twin are left to the trainer."""
    model = make_twin(config)
    if model is None:
        return
    try:
        require_forward_parity(model)
    except UserError:
        raise
    except SIZE_ERRORS:  # the twin's sizes may be invalid beyond a plain forward pass
        return


def require_forward_parity(model: Any, dtype: Dtype = "float32") -> None:
    """Raise UserError if the training or sampling path of a model differs from plain forward
    passes, as trainers and engines do on creation. The model is modified."""
    enable_packed_attention(model)
    remove_dropout(model)
    require_packed_parity(model, OutputLayer(model), SINGLE_PROCESS, model.device, dtype)
    require_cache_parity(model)


def make_twin(config: PreTrainedConfig) -> Any | None:
    """Return a small model of a configuration, in float32 on the CPU. None if its sizes cannot be
    changed independently, as in models that also read images."""
    if len(config.sub_configs) > 1:
        return None
    try:
        twin_config = type(config)(**_shrink_config(config))
        with torch.device("meta"):
            count = sum(
                p.numel() for p in AutoModelForCausalLM.from_config(twin_config).parameters()
            )
        if count > MAX_TWIN_PARAMETERS:
            return None
        model = _random_model(twin_config)
        compute_reference_logprobs(model, make_probe_texts(model.config.get_text_config())[0])
    except SIZE_ERRORS:
        return None
    return model


def _random_model(config: PreTrainedConfig) -> Any:
    """Make a model with random weights from a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for weight in model.parameters():
            weight.data.add_(torch.randn(weight.shape) * WEIGHT_NOISE_STD)
    return model


def _shrink_config(config: PreTrainedConfig) -> dict[str, Any]:
    """Return all keys of a configuration with minimal sizes, and only the first and last entry of
    lists with one entry per layer."""
    keys = config.to_dict()
    layers = config.num_hidden_layers
    layer_indices = [0, layers - 1][:layers]
    for key, value in keys.items():
        if key in TWIN_SIZES and isinstance(value, int) and not isinstance(value, bool):
            keys[key] = min(value, TWIN_SIZES[key])
        elif isinstance(value, list) and len(value) == layers and key != "eos_token_id":
            keys[key] = [value[index] for index in layer_indices]
    if isinstance(keys.get("eos_token_id"), list):
        keys["eos_token_id"] = TWIN_SIZES["eos_token_id"]
    groups = keys.get("num_key_value_heads")
    if "kv_lora_rank" in keys or groups in (
        None,
        config.num_attention_heads,
    ):  # one key head per query head
        keys["num_key_value_heads"] = keys["num_attention_heads"]
    _shorten_rope_factors(keys, config)
    return keys


def _shorten_rope_factors(keys: dict[str, Any], config: PreTrainedConfig) -> None:
    """Shorten the factors of rotary embeddings, of which there is one per pair of dimensions, to
    the twin's head dimension."""
    rope = keys.get("rope_parameters")
    if not isinstance(rope, Mapping) or not any(isinstance(v, list) for v in rope.values()):
        return
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    twin_head_dim = keys.get("head_dim") or keys["hidden_size"] // keys["num_attention_heads"]
    keys["rope_parameters"] = {
        key: value[: len(value) * twin_head_dim // head_dim] if isinstance(value, list) else value
        for key, value in rope.items()
    }
