"""One optimiser step on tiny models of real architectures."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoints import Architecture
from fieldcraft.config.sections import Optim
from fieldcraft.train import batch as batch_module
from fieldcraft.train.batch import Sample, SampleUnit
from fieldcraft.train.losses import (
    ContrastiveLoss,
    CrossEntropyLoss,
    LossFunction,
    PolicyGradientLoss,
)
from fieldcraft.train.output_layer import TokenPredictions, TokenScores, score_tokens
from fieldcraft.train.trainer import Trainer, compute_learning_rate
from fieldcraft.types import UserError
from training_parts import (
    assert_same,
    make_trainer,
    plain_logprobs_of,
    random_samples,
    weights,
)

SURROGATE = PolicyGradientLoss(clip_high=0.3, kl_coef=0.1, entropy_coef=0.01)
SEQUENCES = PolicyGradientLoss(  # every term that uses more than one token
    ratio="sequence",
    dual_clip=1.1,
    importance="sequence",
    importance_cap=1.5,
    reject="geometric",
    reject_low=0.9,
    reject_high=1.1,
    llds_coef=0.3,
)


def gradients(
    trainer: Trainer, units: list[SampleUnit], objective: LossFunction, total: float
) -> tuple[float, dict[str, torch.Tensor]]:
    """Return loss and gradients of one unclipped step, and undo the step."""
    before = weights(trainer.model)
    state = trainer.state_dict()
    row = trainer.step(units, objective, total)
    found = {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            parameter.copy_(before[name])
    trainer.load_state_dict(state)
    return row["loss"], found


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    largest = max(g.abs().max().item() for g in a.values())
    assert largest > 1e-3  # not all gradients are tiny
    worst = max((a[name] - b[name]).abs().max().item() for name in a)
    assert worst < 1e-5 * max(1.0, largest)


# -- the schedule -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "warmup", "rates"),
    [
        ("constant", 0, [1.0, 1.0, 1.0, 1.0]),
        ("constant", 3, [0.25, 0.5, 0.75, 1.0]),
        ("linear", 0, [1.0, 0.75, 0.5, 0.25]),
        ("linear", 1, [0.5, 1.0, 2 / 3, 1 / 3]),
        ("cosine", 2, [1 / 3, 2 / 3, 1.0, 0.5]),
        ("linear", 9, [0.1, 0.2, 0.3, 0.4]),  # the stage ends in its warm-up
        ("constant", 0.5, [1 / 3, 2 / 3, 1.0, 1.0]),  # two of four steps
        ("constant", 0.1, [1.0, 1.0, 1.0, 1.0]),  # less than half a step
        ("cosine", 0, [1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
    ],
)
def test_learning_rates(schedule: Any, warmup: float, rates: list[float]) -> None:
    optim = Optim(lr=0.1, schedule=schedule, warmup_steps=warmup)
    found = [compute_learning_rate(optim, step, 4) for step in range(4)]
    assert found == pytest.approx([0.1 * rate for rate in rates])


def test_every_step_uses_the_rate_of_its_place(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, steps=4, lr=0.1, schedule="linear")
    units = [(sample,) for sample in random_samples(1)]
    assert [trainer.step(units, CrossEntropyLoss(), 1.0)["lr"] for _ in range(3)] == pytest.approx(
        [0.1, 0.075, 0.05]
    )


# -- packing and accumulation change nothing ----------------------------------------------------


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("objective", [CrossEntropyLoss(), ContrastiveLoss(), SURROGATE, SEQUENCES])
def test_packed_equals_alone_equals_accumulated(
    tmp_path: Path, architecture: Architecture, objective: LossFunction
) -> None:
    samples = random_samples(6)
    units: list[SampleUnit] = [(s,) for s in samples]
    if isinstance(objective, ContrastiveLoss):
        units = list(zip(samples[::2], samples[1::2], strict=True))
    total = 7.0
    found = {}
    for name, micro_tokens in {"packed": 10_000, "accumulated": 40}.items():
        trainer = make_trainer(
            tmp_path / name,
            architecture,
            micro_batch_tokens=micro_tokens,
            max_grad_norm=1e9,
        )
        batches = list(trainer.strategy.make_micro_batches(units, trainer.optim.micro_batch_tokens))
        assert (len(batches) > 1) == (name == "accumulated")
        found[name] = gradients(trainer, units, objective, total)
    alone = [gradients(trainer, [unit], objective, total) for unit in units]
    loss = sum(part for part, _ in alone)
    summed = {n: torch.stack([g[n] for _, g in alone]).sum(0) for n in alone[0][1]}
    for other_loss, other in found.values():
        assert other_loss == pytest.approx(loss, abs=1e-5, rel=1e-5)
        assert_close(summed, other)


def branches() -> list[Sample]:
    """Return eight samples of a tree.

    All share 20 tokens, each four share 20 more, and each pair shares 20 more.
    """
    samples = random_samples(8, seed=3, longest=90)
    for number, sample in enumerate(samples):
        for start, alike in ((0, 8), (20, 4), (40, 2)):
            part = sample.ids[start : start + 20]
            part[:] = 3 + start + 100 * (number // alike) + np.arange(len(part))
    return samples


@pytest.mark.parametrize("objective", [CrossEntropyLoss(), ContrastiveLoss(), SURROGATE, SEQUENCES])
def test_shared_prefixes_change_nothing(tmp_path: Path, objective: LossFunction) -> None:
    """Common prefixes do not change the loss or the gradients, whether or not they are shared."""
    samples = branches()
    units: list[SampleUnit] = [(s,) for s in samples]
    if isinstance(objective, ContrastiveLoss):
        units = list(zip(samples[::2], samples[1::2], strict=True))
    trainer = make_trainer(tmp_path, micro_batch_tokens=10_000, max_grad_norm=1e9)
    [batch] = trainer.strategy.make_micro_batches(units, trainer.optim.micro_batch_tokens)
    assert len(batch.ids_N) < 0.8 * sum(map(len, samples))
    continued = [batch.runs[run.parent] for run in batch.runs if run.parent is not None]
    assert any(run.parent is not None for run in continued)
    loss, found = gradients(trainer, units, objective, 7.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_module, "MIN_SHARED_PREFIX_TOKENS", 10**6)
        alone_loss, alone = gradients(trainer, units, objective, 7.0)
    assert loss == pytest.approx(alone_loss, abs=1e-5, rel=1e-5)
    assert_close(alone, found)


def test_loss_and_gradient_equal_those_of_a_plain_forward(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_grad_norm=1e9)
    samples = random_samples(3)
    loss, found = gradients(trainer, [(s,) for s in samples], CrossEntropyLoss(), 5.0)
    trainer.model.zero_grad()
    plain = torch.zeros(())
    for sample in samples:
        ids = torch.from_numpy(sample.ids)
        logits = trainer.model(input_ids=ids[None]).logits[0, :-1]
        logp = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        plain = plain - (torch.from_numpy(sample.weight)[1:] * logp).sum() / 5.0
    plain.backward()
    assert loss == pytest.approx(plain.item(), rel=1e-5)
    expected = {n: p.grad for n, p in trainer.model.named_parameters() if p.grad is not None}
    assert_close(expected, found)


def test_what_untrained_tokens_say_does_not_matter_after_them(tmp_path: Path) -> None:
    """A final observation changes nothing, because no token is predicted from it."""
    trainer = make_trainer(tmp_path)
    [sample] = random_samples(1)
    sample.weight[-4:] = 0
    loss, found = gradients(trainer, [(sample,)], CrossEntropyLoss(), 1.0)
    sample.ids[-4:] = 7
    other_loss, other = gradients(trainer, [(sample,)], CrossEntropyLoss(), 1.0)
    assert loss == pytest.approx(other_loss, rel=1e-6)
    assert_close(found, other)


# -- the step -----------------------------------------------------------------------------------


def test_the_gradient_is_clipped_and_its_norm_reported(tmp_path: Path) -> None:
    units = [(sample,) for sample in random_samples(3)]
    trainer = make_trainer(tmp_path, max_grad_norm=1e9)
    _, whole = gradients(trainer, units, CrossEntropyLoss(), 1.0)
    norm = math.sqrt(sum(float((g**2).sum()) for g in whole.values()))
    trainer.optim = trainer.optim.model_copy(update={"max_grad_norm": norm / 4})
    row = trainer.step(units, CrossEntropyLoss(), 1.0)
    assert row["grad_norm"] == pytest.approx(norm, rel=1e-5)
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(parameter.grad, whole[name] / 4, rtol=1e-4, atol=1e-7)


def test_only_matrices_decay(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, lr=0.1, weight_decay=0.5)
    before = weights(trainer.model)
    sample = random_samples(1)[0]
    sample.advantage[:] = 0  # no gradient, so AdamW only applies the decay
    trainer.step([(sample,)], PolicyGradientLoss(), 1.0)
    for name, parameter in trainer.model.named_parameters():
        factor = 0.95 if parameter.dim() > 1 else 1.0
        torch.testing.assert_close(parameter.detach(), factor * before[name])


@pytest.mark.parametrize("field", ["advantage", "sampled_logp"])
def test_a_gradient_that_is_not_finite_stops_before_the_weights(tmp_path: Path, field: str) -> None:
    trainer = make_trainer(tmp_path)
    before = weights(trainer.model)
    samples = random_samples(3)
    getattr(samples[1], field)[:] = np.nan
    with pytest.raises(UserError, match="step 0 has a non-finite gradient"):
        trainer.step([(s,) for s in samples], PolicyGradientLoss(importance_cap=2.0), 1.0)
    assert_same(before, weights(trainer.model))
    assert trainer.done == 0
    assert not trainer.adamw.state  # the optimiser state is unchanged too


# -- log-probabilities --------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_filled_logprobs_are_those_of_a_plain_forward(
    tmp_path: Path, architecture: Architecture
) -> None:
    trainer = make_trainer(tmp_path, architecture, micro_batch_tokens=40)
    samples = random_samples(5)
    before = [sample.old_logp.copy() for sample in samples]
    trainer.fill_logprobs([(samples[0], samples[1]), *((s,) for s in samples[2:])], "old_logp", 0.7)
    for sample, old in zip(samples, before, strict=True):
        trained = sample.weight > 0
        expected = plain_logprobs_of(trainer.model, sample.ids.tolist(), temperature=0.7)
        np.testing.assert_allclose(
            sample.old_logp[1:][trained[1:]], expected[trained[1:]], atol=1e-4
        )
        assert (sample.old_logp[~trained] == 0).all()
        assert (sample.old_logp[trained] != old[trained]).all()
        assert (sample.ref_logp != sample.old_logp).any()


def test_filling_one_field_leaves_the_others(tmp_path: Path) -> None:
    """`to_sample` gives the three fields one array; writing one must not change the others."""
    trainer = make_trainer(tmp_path)
    [sample] = random_samples(1)
    sample.old_logp = sample.ref_logp = sample.sampled_logp
    before = sample.sampled_logp.copy()
    trainer.fill_logprobs([(sample,)], "ref_logp", 1.0)
    assert (sample.sampled_logp == before).all()
    assert (sample.old_logp == before).all()
    assert (sample.ref_logp != before).any()


def test_only_predicting_positions_reach_the_output_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path)
    [sample] = random_samples(1)
    sample.weight[:] = 0
    sample.weight[[3, 5]] = 1
    rows = []

    def counted(predictions: TokenPredictions, *given: Any) -> TokenScores:
        rows.append(len(predictions.hidden_TH))
        return score_tokens(predictions, *given)

    monkeypatch.setattr("fieldcraft.train.trainer.score_tokens", counted)
    trainer.step([(sample,)], CrossEntropyLoss(), 1.0)
    assert rows == [2]


# -- state --------------------------------------------------------------------------------------


def test_the_state_survives_a_round_trip(tmp_path: Path) -> None:
    """N steps equal k steps, then a new trainer with the saved state, and N - k steps."""
    steps = [[(s,) for s in random_samples(3, seed)] for seed in range(6)]
    settings = {"schedule": "cosine", "warmup_steps": 2, "weight_decay": 0.1, "steps": 6}
    whole = make_trainer(tmp_path / "a", **settings)
    for units in steps:
        whole.step(units, SURROGATE, 9.0)
    first = make_trainer(tmp_path / "b", **settings)
    for units in steps[:4]:
        first.step(units, SURROGATE, 9.0)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = make_trainer(tmp_path / "c", **settings)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert second.done == 4
    for units in steps[4:]:
        second.step(units, SURROGATE, 9.0)
    assert_same(weights(whole.model), weights(second.model))
