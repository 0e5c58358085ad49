"""LoRA: trained parameters, frozen parameters, saved files, and equality after merging."""

import asyncio
import copy
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from checkpoints import Architecture, tiny_tokenizer
from engine_parity import sharp_model
from fieldcraft.config.sections import LoraConfig, Optim
from fieldcraft.engine.weights import ModelWeights, WeightFolder, merge_lora
from fieldcraft.train.batch import to_sample
from fieldcraft.train.distillation import DistillationLoss
from fieldcraft.train.lora import LoraAdapter
from fieldcraft.train.losses import CrossEntropyLoss, PolicyGradientLoss
from fieldcraft.train.model import load_model, make_empty_model
from fieldcraft.train.protocols import TeacherReference
from fieldcraft.train.saving import restore_checkpoint, save_checkpoint, save_model
from fieldcraft.train.trainer import InitialAdapter, Trainer
from fieldcraft.types import Author, UserError
from training_parts import (
    assert_same,
    chatty_engine,
    chatty_rollouts,
    random_samples,
    weights,
)

LORA = LoraConfig(rank=4, alpha=8)
LAYERS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
IDS = torch.arange(3, 40)[None]


def lora_trainer(
    folder: Path,
    architecture: Architecture = "qwen2",
    dtype: torch.dtype = torch.float32,
    lora: LoraConfig = LORA,
    **optim: Any,
) -> tuple[Trainer, LoraAdapter]:
    """Return a trainer of an adapter on a model in which every weight affects the output."""
    model = sharp_model(folder, architecture).to(dtype)
    adapter = LoraAdapter(model, lora, seed=0)
    settings = Optim(**{"lr": 1e-2, **optim})
    return Trainer(model, settings, 10, adapter), adapter


def learn(trainer: Trainer, steps: int = 3, first: int = 0) -> None:
    for number in range(first, first + steps):
        units = [(sample,) for sample in random_samples(3, seed=number)]
        trainer.step(units, CrossEntropyLoss(), 20.0)


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model.eval()(IDS).logits.float()


def of_adapter(model: Any) -> dict[str, torch.Tensor]:
    return {name: value for name, value in weights(model).items() if "lora_" in name}


# -- trained parameters --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_the_adapter_learns(tmp_path: Path, dtype: torch.dtype) -> None:
    trainer, _ = lora_trainer(tmp_path, dtype=dtype)
    before = weights(trainer.model)
    learn(trainer)
    after = weights(trainer.model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == of_adapter(trainer.model).keys()
    # two matrices of rank 4 on each of the seven linear layers of both blocks
    assert len(trainer.weights.masters) == len(changed) == 2 * 2 * 7
    assert {name.split(".")[-4] for name in changed} == LAYERS
    # width 32, keys and values 16, feed-forward 64
    size = 2 * 4 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 64))
    assert sum(p.numel() for p in trainer.weights.masters) == size
    assert {p.dtype for p in trainer.weights.masters} == {torch.float32}
    assert {v.dtype for n, v in after.items() if n not in changed} == {dtype}
    assert len(trainer.adamw.state) == len(trainer.weights.masters)


def test_a_new_adapter_changes_nothing_and_follows_from_the_seed(tmp_path: Path) -> None:
    expected = logits(sharp_model(tmp_path / "a", "qwen2"))
    random = torch.get_rng_state()
    made = [LoraAdapter(sharp_model(tmp_path / "a", "qwen2"), LORA, seed) for seed in (0, 0, 1)]
    assert torch.equal(random, torch.get_rng_state())  # the run's generator is unchanged
    one, same, other = (of_adapter(adapter.peft_model.get_base_model()) for adapter in made)
    assert torch.equal(logits(made[0].peft_model.get_base_model()), expected)
    assert_same(one, same)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_targets_are_layers_by_name(tmp_path: Path) -> None:
    lora = LoraConfig(rank=2, alpha=2, targets=("q_proj", "v_proj"))
    trainer, _ = lora_trainer(tmp_path / "a", lora=lora)
    assert {name.split(".")[-4] for name in of_adapter(trainer.model)} == {"q_proj", "v_proj"}
    with pytest.raises(UserError, match=r"lora.targets=\['q_prj'\] names no linear layer"):
        lora_trainer(tmp_path / "b", lora=LoraConfig(targets=("q_prj",)))


def test_a_rank_beyond_the_width_of_the_model_is_refused() -> None:
    model = tied_model()
    width = model.config.hidden_size
    with pytest.raises(
        UserError, match=rf"lora\.rank=100000 exceeds .* hidden size of {width}: set"
    ):
        LoraAdapter(model, LoraConfig(rank=100_000), seed=0)
    assert not any("lora_" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    "targets", [("lm_head",), ("embed_tokens",), ("q_proj", "lm_head"), ("lm_head", "embed_tokens")]
)
def test_a_layer_that_shares_its_weight_takes_no_adapter(
    targets: tuple[str, ...], tmp_path: Path
) -> None:
    """A merged adapter on one of two tied layers would change the other too."""
    with pytest.raises(UserError) as refused:
        LoraAdapter(tied_model(), LoraConfig(rank=2, targets=targets), seed=0)
    tied_model().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="tied weights"):  # by `check`, before there are weights
        LoraAdapter(make_empty_model(tmp_path), LoraConfig(rank=2, targets=targets), seed=0)
    words = r"lora\.targets=(lm_head|embed_tokens) names a layer whose weight is also that of \S+"
    assert re.match(words, str(refused.value))
    assert "remove it from lora.targets" in str(refused.value)


def test_layers_that_are_one_module_in_two_places_share_no_weight_with_another() -> None:
    model = tied_model()
    model.model.layers[1].mlp = model.model.layers[0].mlp
    LoraAdapter(model, LoraConfig(rank=2, targets=("up_proj",)), seed=0)
    model = tied_model()
    first, second = (layer.mlp.up_proj for layer in model.model.layers)
    second.weight = first.weight
    with pytest.raises(UserError, match=r"targets=up_proj names a layer whose weight is also that"):
        LoraAdapter(model, LoraConfig(rank=2, targets=("up_proj",)), seed=0)


def test_the_other_layers_of_a_tied_model_take_adapters() -> None:
    for targets in ((), ("q_proj",)):
        LoraAdapter(tied_model(), LoraConfig(rank=2, targets=targets), seed=0)


def tied_model() -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=400, tie_word_embeddings=True, **sizes, **heads))


# -- merging ------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_the_merged_model_says_the_same(tmp_path: Path, architecture: Architecture) -> None:
    trainer, adapter = lora_trainer(tmp_path / "base", architecture)
    untrained = logits(trainer.model)
    learn(trainer)
    expected = logits(trainer.model)
    assert (expected - untrained).abs().max() > 0.1
    adapter.save(tmp_path / "adapter")
    base = sharp_model(tmp_path / "base", architecture)
    merged = LoraAdapter(base, LORA, 1, tmp_path / "adapter").merge()
    save_model(tmp_path / "merged", merged, tiny_tokenizer())
    loaded = load_model(tmp_path / "merged", torch.device("cpu"))
    torch.testing.assert_close(logits(loaded), expected, rtol=1e-4, atol=1e-4)
    plain = sharp_model(tmp_path / "base", architecture)
    assert weights(loaded).keys() == weights(plain).keys()


def random_adapter(folder: Path, target: str) -> LoraAdapter:
    """Return an adapter whose two matrices have random weights."""
    model = sharp_model(folder, "llama")
    adapter = LoraAdapter(model, LoraConfig(rank=3, alpha=7, targets=(target,)), seed=0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    return adapter


def test_a_merged_weight_is_the_base_and_the_scaled_product(tmp_path: Path) -> None:
    model = random_adapter(tmp_path, "down_proj").peft_model.get_base_model()
    state, merged = model.state_dict(), dict(merge_lora(model.state_dict(), model))
    plain = sharp_model(tmp_path, "llama").state_dict()
    assert merged.keys() == plain.keys()
    for name, base in plain.items():
        layer = name.removesuffix(".weight")
        expected = base
        if layer.endswith("down_proj"):
            down, up = (state[f"{layer}.lora_{part}.default.weight"] for part in "AB")
            expected = base + 7 / 3 * up @ down
            assert (expected - base).abs().max() > 0.1
        torch.testing.assert_close(merged[name], expected)


@pytest.mark.parametrize("target", ["down_proj", "embed_tokens"])
def test_snapshots_and_exports_merge_to_the_same_bits(tmp_path: Path, target: str) -> None:
    adapter = random_adapter(tmp_path / "base", target)
    source = ModelWeights(adapter.peft_model.get_base_model())
    make_folder = partial(WeightFolder, tmp_path, tiny_tokenizer())
    published = source.take_snapshot(1, torch.float32, make_folder)
    peft_merged = copy.deepcopy(adapter.peft_model).merge_and_unload().state_dict()
    save_model(tmp_path / "export", adapter.merge(), tiny_tokenizer())
    snapshot, export = (
        load_file(folder / "model.safetensors")
        for folder in (published.folder, tmp_path / "export")
    )
    assert_same(snapshot, export)
    assert_same(export, peft_merged)


# -- checkpoints --------------------------------------------------------------------------------


def test_a_checkpoint_is_the_adapter_and_going_on_changes_nothing(tmp_path: Path) -> None:
    whole, _ = lora_trainer(tmp_path / "a", schedule="cosine")
    learn(whole, 6)
    first, _ = lora_trainer(tmp_path / "a", schedule="cosine")
    learn(first, 4)
    saved = save_checkpoint(tmp_path / "stage", first, tiny_tokenizer(), {"state": {"x": 1}})
    files = {path.name for path in saved.iterdir()}
    assert files == {"adapter_model.safetensors", "adapter_config.json", "README.md", "trainer.pt"}
    second, _ = lora_trainer(tmp_path / "a", schedule="cosine")
    assert restore_checkpoint(tmp_path / "stage", second) == {"state": {"x": 1}}
    learn(second, 2, first=4)
    assert_same(weights(whole.model), weights(second.model))


# -- reinforcement learning ---------------------------------------------------------------------


def test_the_reference_is_the_adapter_as_its_stage_found_it(tmp_path: Path) -> None:
    """The reference is not the base model if an earlier stage has trained the adapter."""
    earlier, adapter = lora_trainer(tmp_path / "base")
    learn(earlier)
    adapter.save(tmp_path / "adapter")

    model = sharp_model(tmp_path / "base", "qwen2")
    adapter = LoraAdapter(model, LORA, 1, tmp_path / "adapter")
    trainer = Trainer(model, Optim(lr=1e-2), 10, adapter)
    random = torch.get_rng_state()
    reference = trainer.snapshot_reference()
    assert isinstance(reference, InitialAdapter)
    assert torch.equal(random, torch.get_rng_state())
    learn(trainer, 2, first=3)
    samples = random_samples(3)
    units = [(sample,) for sample in samples]
    reference.fill_logprobs(units, "ref_logp", 0.7)
    trainer.fill_logprobs(units, "old_logp", 0.7)
    expected = [(sample,) for sample in random_samples(3)]
    earlier.fill_logprobs(expected, "ref_logp", 0.7)
    for sample, (other,) in zip(samples, expected, strict=True):
        np.testing.assert_allclose(sample.ref_logp, other.ref_logp, atol=1e-5)
        assert np.abs(sample.ref_logp - sample.old_logp).max() > 0.01
    at_start, before, now = (
        model.predict(samples, 0.7).compute_logits(slice(None))
        for model in (reference, earlier, trainer)
    )
    torch.testing.assert_close(at_start, before, rtol=0, atol=1e-4)
    assert (at_start - now).abs().max() > 0.01
    # also as a teacher between the micro-batches of a step
    to_start = DistillationLoss(policy_loss=PolicyGradientLoss())
    row = trainer.step(units, to_start, 20.0, 0.7, TeacherReference(reference))
    assert row["teacher_kl"] > 1e-4
    assert row["grad_norm"] > 0
    # training continues with the adapter alone
    assert all(p.requires_grad for p in trainer.weights.masters)
    frozen = {n: v for n, v in weights(model).items() if "default" not in n}
    learn(trainer, 1)
    assert_same(frozen, {n: v for n, v in weights(model).items() if "default" not in n})


@pytest.mark.parametrize(
    ("dtype", "gap"), [(torch.float32, 1e-3), (torch.bfloat16, 0.3)], ids=["float32", "bfloat16"]
)
def test_what_the_engine_samples_is_what_is_trained(
    tmp_path: Path, dtype: torch.dtype, gap: float
) -> None:
    """The engine uses the adapter, before and after a step."""
    trainer, _ = lora_trainer(tmp_path, dtype=dtype)
    engine = chatty_engine(trainer)
    for _ in range(2):
        units = [(to_sample(t, {Author.POLICY}, 1.0),) for t in chatty_rollouts(engine, 1.0)]
        total = sum(float(sample.weight.sum()) for (sample,) in units)
        assert {int(v) for (s,) in units for v in s.version[s.weight > 0]} == {trainer.done}
        assert trainer.step(units, PolicyGradientLoss(), total, 1.0)["sampler_logp_diff"] < gap
        trainer.done += 1
        asyncio.run(engine.update_weights(trainer.done))


def test_a_separate_engine_has_an_adapter_of_its_own_on_the_same_base(tmp_path: Path) -> None:
    trainer, _ = lora_trainer(tmp_path)
    engine = chatty_engine(trainer)
    asyncio.run(engine.snapshot_weights())
    mine = dict(engine.model.named_parameters())
    shared = {name for name, weight in trainer.model.named_parameters() if mine[name] is weight}
    assert {"lora" in name for name in mine.keys() - shared} == {True}
    learn(trainer, 2)
    gaps = []
    for version in (0, 1):
        units = [(to_sample(t, {Author.POLICY}, 1.0),) for t in chatty_rollouts(engine, 1.0)]
        trainer.fill_logprobs(units, "old_logp", 1.0)
        gaps.append(max(np.abs(s.old_logp - s.sampled_logp).max() for (s,) in units))
        asyncio.run(engine.update_weights(version + 1))
    assert gaps[0] > 0.01  # the adapter from before the two steps
    assert gaps[1] < 1e-3


# -- activation checkpointing --------------------------------------------------------------------


@pytest.mark.parametrize("adapted", [True, False])
def test_activation_checkpointing_changes_no_gradient(tmp_path: Path, adapted: bool) -> None:
    found = []
    for name, checkpointing in (("a", False), ("b", True)):
        if adapted:
            trainer, _ = lora_trainer(tmp_path / name, activation_checkpointing=checkpointing)
        else:
            optim = Optim(lr=1e-2, activation_checkpointing=checkpointing)
            trainer = Trainer(sharp_model(tmp_path / name, "qwen2"), optim, 10)
        runs: list[int] = []
        block = trainer.model.model.layers[0].self_attn
        hook = block.register_forward_hook(lambda *_, runs=runs: runs.append(1))
        learn(trainer, 1)
        hook.remove()
        assert len(runs) == (2 if checkpointing else 1)
        found.append({n: p.grad for n, p in trainer.model.named_parameters() if p.requires_grad})
    plain, again = found
    assert plain.keys() == again.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient, rtol=1e-5, atol=1e-7)
