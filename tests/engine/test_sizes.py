"""Model sizes under any name, and the length from which a text changes its neighbours."""

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig

from fieldcraft.engine.sizes import (
    get_feed_forward_width,
    get_max_positions,
    get_num_key_value_heads,
    get_rope_length_limit,
    resolve_session_tokens,
)
from fieldcraft.types import UserError
from small_sizes import DYNAMIC, LONG


def config_of(name: str, **keys: Any) -> Any:
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 64}
    return AutoConfig.for_model(name, **(sizes | keys))


@pytest.mark.parametrize(
    ("name", "keys", "width", "heads"),
    [
        ("qwen2", {"intermediate_size": 48, "num_key_value_heads": 2}, 48, 2),
        ("gpt2", {}, 128, 4),
        ("gpt2", {"n_inner": 40}, 40, 4),
        ("opt", {"ffn_dim": 64}, 64, 4),
        ("gpt_bigcode", {"n_inner": 96}, 96, 1),
    ],
)
def test_sizes_have_many_names(name: str, keys: dict[str, Any], width: int, heads: int) -> None:
    config = config_of(name, **keys)
    assert get_feed_forward_width(config) == width
    assert get_num_key_value_heads(config) == heads
    assert get_max_positions(config) == 64


def test_rotary_embeddings_that_depend_on_the_length_bound_a_text() -> None:
    assert get_rope_length_limit(config_of("llama")) is None
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}
    assert get_rope_length_limit(config_of("llama", rope_parameters=yarn)) is None
    assert get_rope_length_limit(config_of("llama", rope_parameters=DYNAMIC)) == 64
    phi = config_of("phi3", rope_parameters=LONG, original_max_position_embeddings=16)
    assert (
        get_rope_length_limit(phi),
        get_max_positions(phi),
        resolve_session_tokens(phi, None),
    ) == (16, 16, 16)
    assert resolve_session_tokens(phi, 10) == 10
    with pytest.raises(UserError, match=r"max_model_len=17 .* 16 tokens .* phi3 change"):
        resolve_session_tokens(phi, 17)


def test_one_kind_of_layer_is_enough() -> None:
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    config = config_of("llama")
    config.rope_parameters = {"full_attention": DYNAMIC, "sliding_attention": plain}
    assert get_rope_length_limit(config) == 64


def test_a_model_without_a_bound_needs_one() -> None:
    config = SimpleNamespace(model_type="mpt")
    assert get_max_positions(config) is None
    assert resolve_session_tokens(config, 5) == 5
    with pytest.raises(UserError, match=r"set engine\.max_model_len"):
        resolve_session_tokens(config, None)
