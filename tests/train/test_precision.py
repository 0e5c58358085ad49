"""Numeric types: sampler and trainer compute in the same one, and no update is lost to rounding."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoints import tiny_tokenizer
from engine_parity import sharp_model
from fieldcraft.config.sections import Optim
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import EventBus
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.folder import RunFolder
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.train.batch import SampleUnit, to_sample
from fieldcraft.train.losses import CrossEntropyLoss
from fieldcraft.train.model import load_model
from fieldcraft.train.saving import restore_checkpoint, save_checkpoint
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Author, UserError
from training_parts import chatty_engine, chatty_rollouts, random_samples

# Measured for this model: a mean of 8e-5 if both compute in bfloat16, and 0.011 if the sampler
# uses float32. Other processors may round a batch and a single token differently.
BOUND = 0.004
BF16 = torch.bfloat16


def rounded_trainer(folder: Path, **optim: Any) -> Trainer:
    """Return a trainer of a model that computes in bfloat16, with masters."""
    settings = Optim(**{"lr": 1e-2, **optim})
    return Trainer(sharp_model(folder, "qwen3"), settings, 10, dtype=BF16)


def units() -> list[SampleUnit]:
    return [(sample,) for sample in random_samples(6)]


def gap(engine: LocalEngine, trainer: Trainer) -> float:
    """Return the mean difference between sampled log-probabilities and the trainer's."""
    done = chatty_rollouts(engine, 1.0)
    units: list[SampleUnit] = [(to_sample(t, {Author.POLICY}, 1.0),) for t in done]
    trainer.fill_logprobs(units, "old_logp", 1.0)
    gaps = [(s.old_logp - s.sampled_logp)[s.weight > 0] for (s,) in units]
    return float(np.abs(np.concatenate(gaps)).mean())


def test_the_sampler_rounds_as_the_trainer_does(tmp_path: Path) -> None:
    trainer = rounded_trainer(tmp_path / "model")
    exact = copy.deepcopy(trainer.model).float()
    assert gap(chatty_engine(trainer), trainer) < BOUND
    trainer.model = exact
    other = chatty_engine(trainer)
    trainer.model = rounded_trainer(tmp_path / "again").model
    assert gap(other, trainer) > BOUND


def test_in_float32_nothing_is_rounded(tmp_path: Path) -> None:
    trainer = Trainer(sharp_model(tmp_path / "model", "qwen3"), Optim(lr=1e-2), 10)
    assert gap(chatty_engine(trainer), trainer) < 1e-4


def test_steps_too_small_for_the_type_add_up_in_the_masters(tmp_path: Path) -> None:
    """A step of 1e-5 is less than half of the distance between numbers near 0.1 in bfloat16."""
    trainer = rounded_trainer(tmp_path / "model", lr=1e-5)
    [*_, master] = [m for m in trainer.weights.masters if m.dim() > 1]
    before, model = master.detach().clone(), copy.deepcopy(trainer.model.state_dict())
    for _ in range(3):
        trainer.step(units(), CrossEntropyLoss(), 10.0)
    moved = (master - before).abs()
    assert 1e-5 < moved.max() < 3.1e-5
    assert master.dtype == torch.float32
    large = {name: value.abs() > 0.1 for name, value in model.items()}
    same = [(trainer.model.state_dict()[name] == model[name])[large[name]] for name in model]
    assert torch.cat(same).float().mean() > 0.9  # most of the weights in the forward pass


def test_the_model_has_the_masters_rounded(tmp_path: Path) -> None:
    trainer = rounded_trainer(tmp_path / "model", lr=0.1)
    trainer.step(units(), CrossEntropyLoss(), 10.0)
    state = trainer.weights.make_state_dict(trainer.model)
    for name, value in trainer.model.state_dict().items():
        assert value.dtype == BF16
        assert state[name].dtype == torch.float32
        assert torch.equal(value, state[name].to(BF16))


def test_gradients_of_micro_batches_add_up_in_float32(tmp_path: Path) -> None:
    """The step hardly depends on the micro-batches. A sum in bfloat16 would lose terms that are 256
    times smaller than it.
    """
    whole = rounded_trainer(tmp_path / "a", micro_batch_tokens=10_000, lr=1e-3)
    parts = rounded_trainer(tmp_path / "b", micro_batch_tokens=1, lr=1e-3)
    rows = [t.step(units(), CrossEntropyLoss(), 10.0) for t in (whole, parts)]
    assert rows[0]["grad_norm"] == pytest.approx(rows[1]["grad_norm"], rel=0.01)
    assert all(m.grad is not None and m.grad.dtype == torch.float32 for m in parts.weights.masters)
    assert all(p.grad is None for p in parts.model.parameters())


@pytest.mark.parametrize("moments", ["float32", "8bit"])
def test_it_resumes_as_if_it_had_never_stopped(tmp_path: Path, moments: str) -> None:
    """The checkpoint has the masters; from rounded weights the second step would differ."""
    one = rounded_trainer(tmp_path / "a", lr=1e-4, optimizer_state=moments)
    other = rounded_trainer(tmp_path / "a", lr=1e-4, optimizer_state=moments)
    one.step(units(), CrossEntropyLoss(), 10.0)
    save_checkpoint(tmp_path / "stage", one, tiny_tokenizer(), {})
    restore_checkpoint(tmp_path / "stage", other)
    rows = [t.step(units(), CrossEntropyLoss(), 10.0) for t in (one, other)]
    assert rows[0] == rows[1]
    for mine, theirs in zip(one.weights.masters, other.weights.masters, strict=True):
        assert torch.equal(mine, theirs)


def test_what_is_saved_is_exact_and_loads_in_either_type(tmp_path: Path) -> None:
    trainer = rounded_trainer(tmp_path / "a", lr=1e-4)
    trainer.step(units(), CrossEntropyLoss(), 10.0)
    trainer.write(tmp_path / "saved", tiny_tokenizer())
    exact = load_model(tmp_path / "saved", torch.device("cpu")).state_dict()
    rounded = load_model(tmp_path / "saved", torch.device("cpu"), "bfloat16").state_dict()
    for name, value in trainer.weights.make_state_dict(trainer.model).items():
        assert torch.equal(exact[name], value)
        assert torch.equal(rounded[name], trainer.model.state_dict()[name])


def test_moments_in_8_bit_learn_nearly_the_same(tmp_path: Path) -> None:
    """Both trainers start from the same model and take ten steps. Tensors below 4,096 numbers have
    float32 moments.
    """
    exact = Trainer(sharp_model(tmp_path / "a", "qwen3"), Optim(lr=1e-3), 10)
    coarse = Trainer(
        sharp_model(tmp_path / "a", "qwen3"), Optim(lr=1e-3, optimizer_state="8bit"), 10
    )
    for _ in range(10):
        rows = [t.step(units(), CrossEntropyLoss(), 10.0) for t in (exact, coarse)]
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=0.02)
    types = {
        v.dtype
        for state in coarse.adamw.state.values()
        for v in state.values()
        if torch.is_tensor(v)
    }
    assert torch.uint8 in types


def test_moments_outside_of_a_gpu_need_one(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="optimizer_state: cpu offloads the optimizer state from a GPU"
    ):
        Trainer(sharp_model(tmp_path / "a", "qwen3"), Optim(lr=1e-3, optimizer_state="cpu"), 10)


def test_a_run_evaluates_in_the_type_in_which_it_trains(tmp_path: Path) -> None:
    def policy(*settings: str) -> Any:
        recipe = load_recipe("smoke", list(settings))
        folder = RunFolder(tmp_path, recipe)
        context = RunContext(
            recipe, folder, make_data_source(recipe), torch.device("cpu"), None, EventBus([])
        )
        sharp_model(tmp_path / "model", "qwen3")
        return context.load_policy_model(tmp_path / "model")

    assert policy().dtype == torch.float32
    assert policy("dtype=bfloat16").dtype == BF16
    assert policy("dtype=bfloat16", "lora={rank: 2}").dtype == torch.float32


def test_the_mismatch_is_weighed_where_types_round() -> None:
    assert load_recipe("smoke", []).stages["rl2"].sampler_is_cap is None
    assert load_recipe("smoke", ["dtype=bfloat16"]).stages["rl2"].sampler_is_cap == 2.0
    overrides = ["dtype=bfloat16", "stages.rl2.sampler_is_cap=null"]
    assert load_recipe("smoke", overrides).stages["rl2"].sampler_is_cap is None
    rejects = ["dtype=bfloat16", "stages.rl2.sampler_reject=token"]
    assert load_recipe("smoke", rejects).stages["rl2"].sampler_is_cap is None
