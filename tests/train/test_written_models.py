"""Written model folders: equality with the trained model, for this program and for others."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from families import FAMILIES
from fieldcraft.config.sections import LoraConfig, Optim
from fieldcraft.dialects.chat_template import find_turn_end
from fieldcraft.engine.generation_config import read_eos_token_ids
from fieldcraft.engine.model_files import add_eos_token
from fieldcraft.train.lora import LoraAdapter
from fieldcraft.train.model import describe_aux_losses, load_model, load_tokenizer
from fieldcraft.train.parity import (
    MAX_DIFFERENCE_STDS,
    probe_model,
    probe_policy,
    require_export_parity,
)
from fieldcraft.train.protocols import ProbeResult
from fieldcraft.train.saving import save_model
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import UserError
from training_parts import make_trainer, weights

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 400,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.0",
}
LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 128,
    "rope_type": "llama3",
}
# As written by transformers 4.
OLD: dict[str, dict[str, Any]] = {
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "rope_theta": 1e6},
    "llama": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "rope_theta": 500000.0,
        "rope_scaling": LLAMA3,
        "pretraining_tp": 1,
    },
    "phi3": {
        "model_type": "phi3",
        "architectures": ["Phi3ForCausalLM"],
        "eos_token_id": 2,
        "pad_token_id": 0,
        "rope_theta": 20000.0,
        "original_max_position_embeddings": 128,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [1.0, 2.0, 3.0, 4.0],
        },
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "rope_theta": 1e6,
        "rope_local_base_freq": 20000.0,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 16,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 8,
    },
}
TOKENIZER = {
    "add_prefix_space": False,
    "added_tokens_decoder": {"2": {"content": "<|im_end|>", "special": True}},
    "additional_special_tokens": ["<|im_start|>"],
    "chat_template": tiny_tokenizer().chat_template,
    "clean_up_tokenization_spaces": False,
    "eos_token": "<|im_end|>",
    "model_max_length": 512,
    "pad_token": "<|endoftext|>",
    "tokenizer_class": "Qwen2Tokenizer",
}


def old_checkpoint(folder: Path, name: str) -> Path:
    """Create a folder like those written by transformers 4."""
    write_tiny_checkpoint(folder, "qwen2")
    (folder / "chat_template.jinja").unlink()
    (folder / "config.json").write_text(json.dumps(SIZES | OLD[name]))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    config = AutoConfig.from_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(SIZES | OLD[name]))
    return folder


def read(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = load_model(folder, CPU)(torch.arange(3, 60)[None]).logits
    return found


# -- programs on transformers 4 -----------------------------------------------------------------


@pytest.mark.parametrize("name", OLD)
def test_an_old_configuration_keeps_its_keys(name: str, tmp_path: Path) -> None:
    old, new, newer = old_checkpoint(tmp_path / "old", name), tmp_path / "new", tmp_path / "newer"
    save_model(new, load_model(old, CPU, "bfloat16"), load_tokenizer(old))
    save_model(newer, load_model(new, CPU, "bfloat16"), load_tokenizer(new))
    for folder in (new, newer):
        written = read(folder, "config.json")
        before = SIZES | OLD[name]
        preserved = before.keys() - {"transformers_version"}
        assert {key: written[key] for key in preserved} == {key: before[key] for key in preserved}
        assert written["dtype"] == written["torch_dtype"] == "bfloat16"
        assert "rope_parameters" in written  # for later versions
    save_model(tmp_path / "exact", load_model(old, CPU), load_tokenizer(old))
    assert read(tmp_path / "exact", "config.json")["torch_dtype"] == "float32"
    assert torch.equal(logits(tmp_path / "exact"), logits(old))


@pytest.mark.parametrize("name", OLD)
def test_a_new_configuration_gets_the_old_keys(name: str, tmp_path: Path) -> None:
    """The model's folder contains the new names only."""
    old = old_checkpoint(tmp_path / "old", name)
    load_model(old, CPU).save_pretrained(tmp_path / "new")
    tiny_tokenizer().save_pretrained(tmp_path / "new")
    assert "rope_theta" not in read(tmp_path / "new", "config.json")
    save_model(tmp_path / "out", load_model(tmp_path / "new", CPU), tiny_tokenizer())
    written = read(tmp_path / "out", "config.json")
    keys = ("rope_theta", "rope_local_base_freq", "rope_scaling")
    assert {k: written.get(k) for k in keys} == {k: OLD[name].get(k) for k in keys}
    assert torch.equal(logits(tmp_path / "out"), logits(old))


def test_a_renamed_key_is_written_by_both_names(tmp_path: Path) -> None:
    """transformers 4 reads `num_experts`, and would default to 128."""
    sizes = {key: SIZES[key] for key in SIZES if key not in ("torch_dtype", "transformers_version")}
    experts = {"num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
    model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(**sizes, **experts))
    save_model(tmp_path / "out", model, tiny_tokenizer())
    written = read(tmp_path / "out", "config.json")
    assert {key: written[key] for key in experts} == experts


def test_what_the_maker_wrote_wins_over_what_follows_from_new_keys(tmp_path: Path) -> None:
    """The configuration contains earlier forms of a key that transformers 5 rewrites."""
    old, new = old_checkpoint(tmp_path / "old", "qwen2"), tmp_path / "new"
    scaling = {"type": "linear", "factor": 4.0}
    config = read(old, "config.json") | {"rope_scaling": scaling}
    (old / "config.json").write_text(json.dumps(config))
    save_model(new, load_model(old, CPU), load_tokenizer(old))
    assert read(new, "config.json")["rope_scaling"] == scaling
    assert torch.equal(logits(new), logits(old))


def test_a_tokenizer_keeps_its_class_and_its_files(tmp_path: Path) -> None:
    old, new = old_checkpoint(tmp_path / "old", "qwen2"), tmp_path / "new"
    save_model(new, load_model(old, CPU), load_tokenizer(old))
    written = read(new, "tokenizer_config.json")
    assert {key: written[key] for key in TOKENIZER} == TOKENIZER
    assert not written.keys() & {"is_local", "local_files_only", "extra_special_tokens"}
    assert (new / "merges.txt").exists()
    text = "Who?<|im_end|>\n<|im_start|> Ada"
    assert load_tokenizer(new)(text)["input_ids"] == load_tokenizer(old)(text)["input_ids"]
    assert load_tokenizer(new).all_special_ids == load_tokenizer(old).all_special_ids


def test_a_chat_template_that_was_corrected_is_written_in_both_places(tmp_path: Path) -> None:
    """Earlier versions read the template in tokenizer_config.json."""
    old, new = old_checkpoint(tmp_path / "old", "qwen2"), tmp_path / "new"
    (old / "chat_template.jinja").write_text("{{ messages }}")
    save_model(new, load_model(old, CPU), load_tokenizer(old))
    assert read(new, "tokenizer_config.json")["chat_template"] == "{{ messages }}"
    assert (new / "chat_template.jinja").read_text() == "{{ messages }}"


@pytest.mark.parametrize("text", [None, "TokenizersBackend"])
def test_a_tokenizer_without_an_old_class_gets_one_that_every_version_has(
    text: str | None, tmp_path: Path
) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    config = read(folder, "tokenizer_config.json")
    config.pop("tokenizer_class")
    config |= {"tokenizer_class": text} if text else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    save_model(tmp_path / "out", load_model(folder, CPU), load_tokenizer(folder))
    written = read(tmp_path / "out", "tokenizer_config.json")
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert written["additional_special_tokens"] == ["<|im_start|>"]
    assert load_tokenizer(tmp_path / "out").all_special_ids == tiny_tokenizer().all_special_ids


def test_a_configuration_says_the_type_of_the_tensors(tmp_path: Path) -> None:
    """The masters of a policy in bfloat16 are float32, and so are the files."""
    write_tiny_checkpoint(tmp_path / "model", "qwen2")
    trainer = Trainer(load_model(tmp_path / "model", CPU), Optim(lr=1e-3), 1, dtype=torch.bfloat16)
    trainer.write(tmp_path / "out", tiny_tokenizer())
    assert read(tmp_path / "out", "config.json")["dtype"] == "float32"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.float32


# -- written = trained --------------------------------------------------------------------------


def test_weights_that_are_lost_stop_the_write(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "model")
    state = trainer.weights.make_state_dict(trainer.model)
    name = "model.layers.1.mlp.down_proj.weight"
    wrong = {**state, name: torch.randn_like(state[name])}
    with pytest.raises(UserError, match=r"differs from the policy: .* differ by \S+ nats"):
        save_model(tmp_path / "out", trainer.model, tiny_tokenizer(), wrong)
    save_model(tmp_path / "right", trainer.model, tiny_tokenizer(), state)


def test_a_checkpoint_of_another_policy_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path / "model")
    lost = {name: torch.randn_like(w) for name, w in weights(trainer.model).items()}
    monkeypatch.setattr(trainer.weights, "make_state_dict", lambda model: lost)
    with pytest.raises(UserError, match="differs from the policy"):
        trainer.save(tmp_path / "step-1", tiny_tokenizer(), {})
    assert not (tmp_path / "step-1").exists()


@pytest.mark.parametrize("dtype", MAX_DIFFERENCE_STDS)
def test_an_adapter_is_compared_as_it_was_trained(dtype: Any, tmp_path: Path) -> None:
    """The probe runs with the adapter separate from its weights and with it merged."""
    write_tiny_checkpoint(tmp_path / "model", "qwen2")
    model = load_model(tmp_path / "model", CPU, dtype)
    adapter = LoraAdapter(model, LoraConfig(rank=2), seed=0)
    trainer = Trainer(model, Optim(lr=1e-3), 1, adapter)
    for weight in trainer.weights.masters:
        torch.nn.init.normal_(weight, std=0.5)
    result = trainer.run_probe()
    assert result.dtype == dtype
    adapter.save(tmp_path / "adapter")
    base = load_model(tmp_path / "model", CPU, dtype).float()
    unmerged = probe_model(load_model(tmp_path / "model", CPU))
    merged = LoraAdapter(base, LoraConfig(rank=2), 0, tmp_path / "adapter").merge()
    save_model(tmp_path / "merged", merged, tiny_tokenizer(), probe=result)
    with pytest.raises(UserError, match="differs from the policy"):
        save_model(tmp_path / "lost", merged, tiny_tokenizer(), probe=unmerged)


def test_a_policy_says_the_same_in_training_and_outside(tmp_path: Path) -> None:
    model = load_model(write_tiny_checkpoint(tmp_path / "model", "qwen2"), CPU)
    trainer = Trainer(load_model(tmp_path / "model", CPU), Optim(lr=1e-3), 1)
    result = probe_policy(trainer, model.config, "float32")
    assert result.probe.mean_abs_difference(probe_model(model).probe.logprobs) < 1e-5


def test_what_is_not_a_number_is_no_agreement(tmp_path: Path) -> None:
    model = load_model(write_tiny_checkpoint(tmp_path / "model", "qwen2"), CPU)
    result = probe_model(model)
    result.probe.logprobs[3] = float("nan")
    with pytest.raises(UserError, match="differ by nan nats"):
        require_export_parity(tmp_path / "model", ProbeResult(result.probe, "float32"), "float32")


def test_a_probe_of_another_process_is_read_only(tmp_path: Path) -> None:
    """Arrays from a rank are read-only, and nothing may write to them."""
    model = load_model(write_tiny_checkpoint(tmp_path / "model", "qwen2"), CPU)
    probe = probe_model(model)
    probe.probe.logprobs.flags.writeable = False
    torch.set_warn_always(True)
    try:
        require_export_parity(tmp_path / "model", probe, "float32")
    finally:
        torch.set_warn_always(False)


def test_writing_takes_no_random_number(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "model")
    before = torch.get_rng_state()
    trainer.write(tmp_path / "out", tiny_tokenizer())
    assert torch.equal(before, torch.get_rng_state())


# -- end tokens for other programs --------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_written_model_stops_where_demonstrations_end(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    tokenizer = family.tokenizer()
    folder = write_tiny_checkpoint(tmp_path / "model", "qwen2", tokenizer=tokenizer)
    file = folder / "generation_config.json"
    stops = list(family.ends(tokenizer))
    file.write_text(json.dumps(read(folder, file.name) | {"eos_token_id": stops, "top_k": 20}))
    before = find_turn_end(tokenizer, read_eos_token_ids(folder))
    add_eos_token(folder, before.token_id)
    assert {*read_eos_token_ids(folder)} == {*stops, tokenizer.convert_tokens_to_ids(family.end)}
    assert read(folder, file.name)["top_k"] == 20
    assert find_turn_end(tokenizer, read_eos_token_ids(folder)).token_id == before.token_id
    load_model(folder, CPU)


def test_a_folder_without_generation_settings_gets_an_end(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    (folder / "generation_config.json").unlink()
    (known,) = read_eos_token_ids(folder)
    add_eos_token(folder, known)
    assert not (folder / "generation_config.json").exists()
    add_eos_token(folder, 0)
    assert read_eos_token_ids(folder) == (known, 0)


# -- auxiliary losses of a configuration --------------------------------------------------------


def test_losses_of_a_configuration_are_named() -> None:
    experts = {"num_experts": 4, "moe_intermediate_size": 16}
    [note] = describe_aux_losses(Qwen3MoeConfig(**experts, router_aux_loss_coef=0.5))
    assert note.startswith("router_aux_loss_coef=0.5 of its config.json")
    assert describe_aux_losses(Qwen3MoeConfig(**experts, router_aux_loss_coef=0.0)) == []
    assert describe_aux_losses(Qwen2Config()) == []
