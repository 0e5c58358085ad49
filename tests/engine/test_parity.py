"""Parity checks: models that differ from a plain forward pass are refused for training and
sampling.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from checkpoints import tiny_tokenizer
from engine_parity import sharp_model
from fieldcraft.config.sections import LoraConfig, Optim
from fieldcraft.engine.local import kv_cache, parity
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.parity import make_probe_texts, require_equal_logprobs
from fieldcraft.train import blockwise_attention, trainer
from fieldcraft.train.batch import MIN_SHARED_PREFIX_TOKENS, TokenRun
from fieldcraft.train.lora import LoraAdapter
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import UserError
from small_sizes import SMALL
from training_parts import weights

SIZES: dict[str, Any] = {
    **SMALL,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "eos_token_id": 2,
}


def model_of(name: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **SIZES)).eval()


def engine_of(model: Any) -> LocalEngine:
    return LocalEngine(model, tiny_tokenizer(), max_num_seqs=2)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nemotron", "its layers do not pass the sequence boundaries to the attention function"),
        ("doge", "it adds its own attention mask"),
    ],
)
def test_architectures_that_attend_otherwise_are_refused(name: str, why: str) -> None:
    words = f"{name.capitalize()}Attention.*because {why}: choose"
    with pytest.raises(UserError, match=f"{words}.*plain attention"):
        Trainer(model_of(name), Optim(lr=1e-3), steps=1)
    with pytest.raises(UserError, match=f"The local engine cannot run {words}"):
        engine_of(model_of(name))


def see(
    monkeypatch: pytest.MonkeyPatch, way: Callable[[int, Sequence[TokenRun]], list[int]]
) -> None:
    """Let runs attend to other runs than their ancestors."""
    monkeypatch.setattr(
        blockwise_attention, "split_blocks", blockwise_attention.split_blocks.__wrapped__
    )
    monkeypatch.setattr(blockwise_attention, "trace_ancestors", way)


def test_a_packed_batch_whose_texts_see_each_other_is_refused_with_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sharp_model(tmp_path, "qwen3")
    before = weights(model)
    see(monkeypatch, lambda place, runs: list(range(place + 1)))
    with pytest.raises(UserError, match=r"^Qwen3ForCausalLM .* in a packed batch its .* nats"):
        Trainer(model, Optim(lr=1e-3), steps=1)
    assert all(torch.equal(now, before[name]) for name, now in weights(model).items())


def test_dropout_that_is_left_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "remove_dropout", lambda model: None)
    config = AutoConfig.for_model("opt", **SIZES, ffn_dim=64, word_embed_proj_dim=32, dropout=0.5)
    with pytest.raises(UserError, match=r"OPTForCausalLM .* in a packed batch"):
        Trainer(AutoModelForCausalLM.from_config(config), Optim(lr=1e-3), steps=1)


@pytest.mark.parametrize("broken", ["_attend_decode", "_attend_prefill"])
def test_a_cache_that_computes_otherwise_is_refused(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = getattr(kv_cache, broken)
    monkeypatch.setattr(kv_cache, broken, lambda q, *rest: plain(0.9 * q, *rest))
    with pytest.raises(UserError, match=r"with keys and values in a cache .* nats"):
        engine_of(sharp_model(tmp_path, "qwen3"))


def test_an_adapter_is_compared_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharp_model(tmp_path, "qwen3")
    adapter = LoraAdapter(model, LoraConfig(rank=2, alpha=8), seed=0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    Trainer(model, Optim(lr=1e-3), 1, adapter)
    engine_of(model)
    see(monkeypatch, lambda place, runs: [place])
    with pytest.raises(UserError, match="in a packed batch"):
        Trainer(model, Optim(lr=1e-3), 1, adapter)


def test_probes_share_what_the_trainer_and_the_engine_share() -> None:
    first, second, third = make_probe_texts(AutoConfig.for_model("qwen2", **SIZES))
    alike = next(i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
    assert alike >= max(kv_cache.BLOCK_TOKENS, MIN_SHARED_PREFIX_TOKENS)
    assert len(second) - parity.DECODED_TOKENS >= alike
    assert third[0] != first[0]
    assert max(map(max, (first, second, third))) < 400


def test_a_model_without_weights_is_not_compared() -> None:
    """The settings of an engine can therefore be checked before the weights exist."""
    with torch.device("meta"):
        engine_of(model_of("qwen2"))


def test_few_positions_make_short_probes() -> None:
    config = AutoConfig.for_model(
        "gpt2", vocab_size=400, n_embd=32, n_layer=2, n_head=4, eos_token_id=2
    )
    config.n_positions = 20
    assert [len(ids) for ids in make_probe_texts(config)] == [20, 20, 12]
    model = AutoModelForCausalLM.from_config(config).eval()
    Trainer(model, Optim(lr=1e-3), steps=1)
    engine_of(model)


def test_rounding_depends_on_the_type_and_what_is_not_finite_is_not_compared() -> None:
    model, plain = model_of("qwen2"), torch.linspace(-8, -2, 20)
    require_equal_logprobs(model, "so", "float32", [plain + 1e-3], [plain])
    require_equal_logprobs(model, "so", "bfloat16", [plain + 0.1], [plain])
    with pytest.raises(UserError, match=re.escape("by 0.1 nats")):
        require_equal_logprobs(model, "so", "float32", [plain + 0.1], [plain])
    nothing = torch.full((3,), torch.nan)
    require_equal_logprobs(model, "so", "float32", [nothing], [nothing])
    with pytest.raises(UserError, match="nan nats"):
        require_equal_logprobs(model, "so", "float32", [nothing, plain[:1]], [plain[:3], plain[:1]])
