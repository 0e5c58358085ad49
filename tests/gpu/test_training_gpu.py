"""Equality of training on a CUDA device with training on the CPU and with the engine's samples."""

import asyncio
import random
from pathlib import Path

import pytest
import torch

from checkpoints import Architecture, tiny_tokenizer
from engine_parity import sharp_model
from fieldcraft.config.sections import Optim
from fieldcraft.train.batch import SampleUnit
from fieldcraft.train.losses import (
    ContrastiveLoss,
    CrossEntropyLoss,
    LossFunction,
    PolicyGradientLoss,
)
from fieldcraft.train.packed_attention import supports_varlen_kernel
from fieldcraft.train.saving import restore_checkpoint, save_checkpoint
from fieldcraft.train.trainer import Trainer
from training_parts import (
    assert_agree,
    assert_same,
    attended,
    chatty_engine,
    chatty_rollouts,
    make_trainer,
    random_forest,
    random_samples,
    weights,
)

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SURROGATE = PolicyGradientLoss(clip_high=0.3, kl_coef=0.1, entropy_coef=0.01)


def on_device(trainer: Trainer) -> Trainer:
    trainer.model.to(DEVICE)  # in place, so the optimiser keeps its parameters
    return trainer


def units_for(objective: LossFunction) -> list[SampleUnit]:
    samples = random_samples(8)
    if isinstance(objective, ContrastiveLoss):
        return list(zip(samples[::2], samples[1::2], strict=True))
    return [(sample,) for sample in samples]


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("objective", [CrossEntropyLoss(), ContrastiveLoss(), SURROGATE])
def test_a_step_is_that_of_the_cpu(
    tmp_path: Path, architecture: Architecture, objective: LossFunction
) -> None:
    here = make_trainer(tmp_path / "a", architecture, lr=1e-3)
    there = on_device(make_trainer(tmp_path / "b", architecture, lr=1e-3))
    for _ in range(2):
        expected = here.step(units_for(objective), objective, 7.0)
        found = there.step(units_for(objective), objective, 7.0)
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
    norm = sum(float(p.grad.norm() ** 2) for p in here.model.parameters() if p.grad is not None)
    for one, other in zip(here.model.parameters(), there.model.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert (one.grad - other.grad.cpu()).norm() < 1e-3 * norm**0.5


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_engine_and_trainer_agree(
    tmp_path: Path, architecture: Architecture, temperature: float
) -> None:
    trainer = on_device(make_trainer(tmp_path, architecture))
    engine = chatty_engine(trainer)
    for _ in range(2):
        units = assert_agree(trainer, chatty_rollouts(engine, temperature), temperature)
        total = sum(float(sample.weight.sum()) for (sample,) in units)
        assert (
            trainer.step(units, PolicyGradientLoss(), total, temperature)["sampler_logp_diff"]
            < 1e-3
        )
        trainer.done += 1
        asyncio.run(engine.update_weights(trainer.done))


def test_a_checkpoint_of_the_device_goes_on_on_the_cpu_and_back(tmp_path: Path) -> None:
    first = on_device(make_trainer(tmp_path / "a"))
    first.step(units_for(SURROGATE), SURROGATE, 7.0)
    save_checkpoint(tmp_path / "stage", first, tiny_tokenizer(), {"state": {"best": 2}})
    for second in (make_trainer(tmp_path / "b"), on_device(make_trainer(tmp_path / "c"))):
        assert restore_checkpoint(tmp_path / "stage", second) == {"state": {"best": 2}}
        assert second.done == 1
        before = {name: value.cpu() for name, value in weights(first.model).items()}
        assert_same(before, {name: value.cpu() for name, value in weights(second.model).items()})
        assert second.step(units_for(SURROGATE), SURROGATE, 7.0)["grad_norm"] > 0


def test_bfloat16_trains_nearly_the_same(tmp_path: Path) -> None:
    units = units_for(CrossEntropyLoss())
    exact = on_device(make_trainer(tmp_path / "a")).step(units, CrossEntropyLoss(), 100.0)
    model = sharp_model(tmp_path / "b", "qwen3").to(DEVICE)
    rounded = Trainer(model, Optim(lr=1e-2), 10, dtype=torch.bfloat16)
    mixed = rounded.step(units, CrossEntropyLoss(), 100.0)
    assert mixed["loss"] == pytest.approx(exact["loss"], rel=0.1)
    assert mixed["loss"] != exact["loss"]


@pytest.mark.parametrize(("moments", "tolerance"), [("cpu", 1e-5), ("8bit", 0.02)])
def test_other_moments_learn_the_same(tmp_path: Path, moments: str, tolerance: float) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the extra optim")
    units = units_for(CrossEntropyLoss())
    losses = []
    for name in ("float32", moments):
        model = sharp_model(tmp_path / name, "qwen3").to(DEVICE)
        trainer = Trainer(model, Optim(lr=1e-3, optimizer_state=name), 10)
        losses.append([trainer.step(units, CrossEntropyLoss(), 100.0)["loss"] for _ in range(5)])
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_kernel_computes_what_one_for_each_run_does(dtype: torch.dtype) -> None:
    """The device computes in 16 bits and the CPU in 32."""
    for seed in range(8):
        rng = random.Random(seed)
        runs = random_forest(rng, rng.randint(1, 7))
        held = sorted(rng.sample(range(len(runs)), rng.randint(1, len(runs))))
        expected = attended(runs, held, seed)
        assert supports_varlen_kernel(torch.zeros(1, 4, 1, 8, dtype=dtype, device=DEVICE))
        for found, target in zip(attended(runs, held, seed, DEVICE, dtype), expected, strict=True):
            torch.testing.assert_close(found.float().cpu(), target, rtol=0.05, atol=0.05)
