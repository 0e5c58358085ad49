"""Critics on tiny models of real architectures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoints import Architecture
from engine_parity import sharp_model
from fieldcraft.config.rl import CriticConfig as Settings
from fieldcraft.config.sections import Optim
from fieldcraft.train.batch import Sample, SampleUnit
from fieldcraft.train.critic import Critic
from training_parts import assert_same, random_samples, weights

BACKBONES = ["separate", "policy"]


def make_critic(
    folder: Path, backbone: Any, architecture: Architecture = "qwen3", **optim: Any
) -> Critic:
    settings = Settings(backbone=backbone, clip=5.0)
    given = Optim(**{"lr": 1e-2, "max_grad_norm": 1e9, **optim})
    critic = Critic(sharp_model(folder, architecture), settings, given, 10)
    with torch.no_grad():
        critic.head.weight.copy_(torch.linspace(-0.1, 0.1, critic.head.weight.numel())[None])
        critic.head.bias.fill_(0.3)
    return critic


def samples(count: int = 6) -> list[Sample]:
    rng = np.random.default_rng(1)
    found = random_samples(count)
    for sample in found:
        sample.value = rng.uniform(-1, 1, len(sample)).astype(np.float32)
        sample.target = rng.uniform(-1, 1, len(sample)).astype(np.float32)
    return found


def gradients(critic: Critic, units: list[SampleUnit]) -> tuple[float, list[torch.Tensor]]:
    """Return loss and gradients of a step, which is then undone."""
    before = [p.detach().clone() for p in critic.weights.masters]
    loss = critic.step(units, 7.0)["loss"]
    found = [
        torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in critic.weights.masters
    ]
    with torch.no_grad():
        for parameter, value in zip(critic.weights.masters, before, strict=True):
            parameter.copy_(value)
    return loss, found


def test_it_begins_by_expecting_nothing(tmp_path: Path) -> None:
    critic = Critic(sharp_model(tmp_path, "qwen3"), Settings(), Optim(lr=1e-2), 1)
    found = random_samples(2)
    critic.fill_values([(s,) for s in found])
    assert all((s.value == 0).all() and len(s.value) == len(s) for s in found)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_a_value_is_that_of_the_context_before_the_token(
    tmp_path: Path, architecture: Architecture
) -> None:
    critic = make_critic(tmp_path, "separate", architecture, micro_batch_tokens=40)
    found = samples()
    critic.fill_values([(s,) for s in found])
    for sample in found:
        with torch.no_grad():
            hidden = critic.model.base_model(torch.from_numpy(sample.ids)[None]).last_hidden_state
            expected = (hidden[0] @ critic.head.weight[0] + critic.head.bias).numpy()
        trained = np.flatnonzero(sample.weight)
        np.testing.assert_allclose(sample.value[trained], expected[trained - 1], atol=1e-4)
        assert (np.delete(sample.value, trained) == 0).all()


@pytest.mark.parametrize("backbone", BACKBONES)
def test_packed_equals_alone_equals_accumulated(tmp_path: Path, backbone: str) -> None:
    units: list[SampleUnit] = [(s,) for s in samples()]
    critic = make_critic(tmp_path / "alone", backbone)
    alone = [gradients(critic, [unit]) for unit in units]
    loss = sum(part for part, _ in alone)
    summed = [sum(parts[1:], parts[0]) for parts in zip(*(g for _, g in alone), strict=True)]
    assert max(g.abs().max().item() for g in summed) > 1e-3
    for micro_tokens in (10_000, 40):
        cut = make_critic(tmp_path / str(micro_tokens), backbone, micro_batch_tokens=micro_tokens)
        other_loss, other = gradients(cut, units)
        assert other_loss == pytest.approx(loss, rel=1e-5)
        for one, two in zip(summed, other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_it_learns_and_leaves_the_policy_as_it_is(tmp_path: Path, backbone: str) -> None:
    critic = make_critic(tmp_path, backbone)
    before = weights(critic.model)
    units: list[SampleUnit] = [(s,) for s in samples()]
    critic.fill_values(units)
    losses = [critic.step(units, 7.0)["loss"] for _ in range(8)]
    assert losses[-1] < losses[0]
    if backbone == "policy":
        assert_same(before, weights(critic.model))
        assert all(p.grad is None for p in critic.model.parameters())
    else:
        assert any((before[name] != p).any() for name, p in critic.model.named_parameters())


def test_it_has_its_own_optimiser(tmp_path: Path) -> None:
    own = Optim(lr=0.5, schedule="linear")
    model = sharp_model(tmp_path, "qwen3")
    critic = Critic(model, Settings(optim=own), Optim(lr=1e-2), 4)
    critic.done = 1
    assert critic.step([(s,) for s in samples()], 7.0)["lr"] == pytest.approx(0.5 * 0.75)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_state_survives_a_round_trip(tmp_path: Path, backbone: str) -> None:
    """N steps equal k steps, then a new critic with the saved state, and N - k steps."""
    units: list[SampleUnit] = [(s,) for s in samples()]
    whole, first = make_critic(tmp_path / "a", backbone), make_critic(tmp_path / "b", backbone)
    for _ in range(4):
        whole.step(units, 7.0)
    for _ in range(2):
        first.step(units, 7.0)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = make_critic(tmp_path / "c", backbone)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert second.done == 2
    for _ in range(2):
        second.step(units, 7.0)
    assert_same(weights(whole.head), weights(second.head))
    assert_same(weights(whole.model), weights(second.model))
