"""Saved checkpoints: every tensor is restored, or an error states the damage."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    MixtralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3MoeConfig,
)

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from fieldcraft.config.sections import LoraConfig, Optim
from fieldcraft.train.lora import LoraAdapter
from fieldcraft.train.losses import CrossEntropyLoss
from fieldcraft.train.model import load_config, load_model, make_empty_model
from fieldcraft.train.saving import restore_checkpoint, save_checkpoint
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import UserError
from small_sizes import SMALL
from training_parts import assert_same, make_trainer, random_samples

SHAPE: dict[str, Any] = {
    **SMALL,
    "num_key_value_heads": 2,
}
CONFIGS = {
    "qwen3_moe": Qwen3MoeConfig(
        **SHAPE, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2
    ),
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=4),
    "tied": Qwen2Config(**SHAPE, tie_word_embeddings=True),
}
CPU = torch.device("cpu")


def trainer_of(config: PreTrainedConfig, seed: int) -> Trainer:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    return Trainer(model, Optim(lr=1e-2), steps=4)


def tensors(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("parts", ["one file", "several files"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_tensor_comes_back(name: str, parts: str, tmp_path: Path) -> None:
    """Experts, which transformers saves as separate tensors, and weights split into files are
    included.
    """
    first = trainer_of(CONFIGS[name], seed=1)
    first.step([(sample,) for sample in random_samples(3)], CrossEntropyLoss(), 1.0)
    folder = save_checkpoint(tmp_path, first, tiny_tokenizer(), {"state": {}})
    if parts == "several files":
        (folder / "model.safetensors").unlink()
        first.model.save_pretrained(folder, max_shard_size="20KB")
        assert len(list(folder.glob("*.safetensors"))) > 2
    second = trainer_of(CONFIGS[name], seed=2)
    assert restore_checkpoint(tmp_path, second) == {"state": {}}
    assert_same(tensors(second.model), tensors(first.model))
    assert second.done == 1
    assert_same(tensors(load_model(folder, CPU)), tensors(first.model))


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    first, second = (trainer_of(CONFIGS["tied"], seed) for seed in (1, 2))
    save_checkpoint(tmp_path, first, tiny_tokenizer(), {})
    restore_checkpoint(tmp_path, second)
    assert second.model.lm_head.weight is second.model.model.embed_tokens.weight


def test_a_checkpoint_without_an_expert_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of(CONFIGS["mixtral"], seed=1)
    folder = save_checkpoint(tmp_path, trainer, tiny_tokenizer(), {})
    file = folder / "model.safetensors"
    remaining = {key: value for key, value in load_file(file).items() if ".1.w1" not in key}
    save_file(remaining, file, metadata={"format": "pt"})
    with pytest.raises(UserError) as refused:
        restore_checkpoint(tmp_path, trainer)
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize("end", ["x", [0, "x"], 10**400, -1, 1.5])
def test_an_end_of_sequences_that_is_no_token_is_refused(end: Any, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": end}))
    with pytest.raises(UserError, match=r"generation_config\.json contains an eos_token_id"):
        load_model(folder, CPU)


def test_a_state_of_the_optimiser_that_is_cut_off(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "model")
    file = save_checkpoint(tmp_path, trainer, tiny_tokenizer(), {}) / "trainer.pt"
    file.write_bytes(file.read_bytes()[:-100])
    aside = f"{file.parent.name}.damaged"
    with pytest.raises(UserError, match=f"{file} .*; rename {file.parent} to {aside}"):
        restore_checkpoint(tmp_path, trainer)
    file.parent.rename(tmp_path / aside)
    assert restore_checkpoint(tmp_path, trainer) == {}


@pytest.mark.parametrize("damage", ["missing", "not finite", "of another shape", "cut off"])
def test_a_damaged_adapter_is_refused(damage: str, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", "qwen3")
    LoraAdapter(load_model(folder, CPU), LoraConfig(rank=2), seed=0).save(tmp_path / "adapter")
    shutil.copytree(tmp_path / "adapter", tmp_path / "other")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    saved = load_file(file)
    name = min(saved)
    changed = {
        "missing": {key: value for key, value in saved.items() if key != name},
        "not finite": saved | {name: saved[name] * torch.nan},
        "of another shape": saved | {name: saved[name][:1].clone()},
    }
    save_file(changed.get(damage, saved), file)
    if damage == "cut off":
        file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(UserError) as refused:
        LoraAdapter(load_model(folder, CPU), LoraConfig(rank=2), 0, tmp_path / "adapter")
    assert str(file) in str(refused.value)
    if damage in ("missing", "not finite"):
        assert name in str(refused.value)
    LoraAdapter(
        load_model(folder, CPU), LoraConfig(rank=2), 0, tmp_path / "other"
    )  # the complete one loads


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ("config.json", {"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ("config.json", {"quantization_config": {"load_in_4bit": True}}, "see quantization_config"),
        ("config.json", {"compression_config": {"quant_method": "compressed-tensors"}}, "compress"),
        ("config.json", {"text_config": {"quantization_config": {"quant_method": "bnb"}}}, "bnb"),
        ("quantize_config.json", {"bits": 4}, "see quantize_config.json"),
        ("quant_config.json", {"w_bit": 4}, "see quant_config.json"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}, "see hf_quant_config"),
    ],
)
def test_quantised_weights_are_refused(
    file: str, content: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_tiny_checkpoint(tmp_path / "model", "qwen2") / file
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | content))
    for read in (load_config, make_empty_model, lambda folder: load_model(folder, CPU)):
        with pytest.raises(
            UserError, match=rf"is quantised \({message}.*use the unquantised model"
        ):
            read(path.parent)


@pytest.mark.parametrize("neutral", [None, {}])
def test_a_model_that_says_it_is_not_quantised_loads(neutral: Any, tmp_path: Path) -> None:
    file = write_tiny_checkpoint(tmp_path / "model", "qwen2") / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": neutral}))
    load_config(file.parent)


def test_weights_have_the_mode_of_the_umask(tmp_path: Path) -> None:
    """safetensors would hide the files from every other user and container."""
    trainer = make_trainer(tmp_path / "model")
    saved = save_checkpoint(tmp_path, trainer, tiny_tokenizer(), {})
    modes = {file.name: file.stat().st_mode for file in saved.iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]


def test_a_lack_of_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_trainer(tmp_path / "model")

    def lacks(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lacks)
    with pytest.raises(UserError, match=r"needs more memory than is free .* dtype: bfloat16") as it:
        load_model(tmp_path / "model", CPU)
    assert "damaged" not in str(it.value)
