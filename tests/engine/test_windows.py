"""Layers with a sliding window of attention, in training and in sampling."""

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from architectures import EQUAL, made, plain_logprobs, sampled_gap, small_keys, trained_gap
from fieldcraft.config.sections import Optim
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.train.packed_attention import WINDOW_CHUNK_QUERIES, attend_run
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import UserError

KINDS = ["sliding_attention", "full_attention"]
MODELS: dict[str, dict[str, Any]] = {
    "gemma3_text": {"layer_types": KINDS, "query_pre_attn_scalar": 8},
    "mistral": {},
    "qwen2": {"layer_types": KINDS, "use_sliding_window": True},
    "cohere2": {"layer_types": KINDS},
}


def windowed(name: str, window: int) -> Any:
    return made(name, small_keys(name) | MODELS[name] | {"sliding_window": window})


# Texts have 44 tokens or more: windows within one cache block, over two, and beyond the text.
@pytest.mark.parametrize("window", [1, 5, 40, 4096])
@pytest.mark.parametrize("name", MODELS)
def test_a_window_is_that_of_a_plain_forward_pass(name: str, window: int) -> None:
    model = windowed(name, window)
    assert trained_gap(model) < EQUAL
    assert sampled_gap(model) < EQUAL


def test_the_windows_matter() -> None:
    ids = list(range(4, 60))
    near, far = (plain_logprobs(windowed("mistral", window), ids) for window in (5, 4096))
    assert abs(near - far).max() > 0.01


@pytest.mark.parametrize(
    "window", [3, WINDOW_CHUNK_QUERIES - 1, WINDOW_CHUNK_QUERIES, WINDOW_CHUNK_QUERIES + 9, 10_000]
)
@pytest.mark.parametrize("past", [0, 7, 400])
def test_pieces_of_a_run_are_as_one(window: int, past: int) -> None:
    torch.manual_seed(0)
    count = 2 * WINDOW_CHUNK_QUERIES + 30
    query = torch.randn(1, 2, count, 4)
    keys, values = torch.randn(2, 1, 2, past + count, 4)
    seen = torch.arange(past + count) <= past + torch.arange(count)[:, None]
    seen &= torch.arange(past + count) > past + torch.arange(count)[:, None] - window
    whole = scaled_dot_product_attention(query, keys, values, attn_mask=seen)
    found = attend_run(scaled_dot_product_attention, query, keys, values, window)
    torch.testing.assert_close(found, whole)


def test_a_window_that_layers_do_not_pass_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = windowed("gemma3_text", 5)
    for layer in model.model.layers:
        layer.self_attn.sliding_window = None
    with pytest.raises(UserError, match="do not pass their sliding window"):
        Trainer(model, Optim(lr=1e-3), steps=1)
    with pytest.raises(UserError, match="do not pass their sliding window"):
        LocalEngine(model, None, max_num_seqs=1)
