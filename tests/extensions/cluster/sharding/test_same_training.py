"""Equality of training in ranks and in one process: losses and weights to 1e-4 after 20 steps.

Rounding depends on the processor and accumulates over steps: one gradient norm differed by 1.1e-5.

Models are tiny, and models and data are random. Every trained weight has a gradient far above the
noise of float32. AdamW would turn noise alone into a full step, and then no two orders of summation
would agree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sharded_parts import (
    WORDS,
    Kind,
    Models,
    ModelsSpec,
    gap,
    pairs,
    parted,
    plain,
    sharded,
    units,
    weight_of,
    write_model,
    written,
)

from fieldcraft.config.rl import CriticConfig
from fieldcraft.config.sections import LoraConfig, Optim
from fieldcraft.train.batch import Sample, SampleUnit
from fieldcraft.train.distillation import DistillationLoss
from fieldcraft.train.losses import (
    ContrastiveLoss,
    CrossEntropyLoss,
    LossFunction,
    PolicyGradientLoss,
)
from fieldcraft.train.protocols import TeacherReference, store_scores
from fieldcraft.train.teacher import TeacherScorer
from rank_processes import Pool

FEW, MANY = 4, 20  # steps of the tests that always run, and of the other tests
TEMPERATURE = 0.8
TOKENS = PolicyGradientLoss(clip_high=0.3, kl_coef=0.1, entropy_coef=0.01)
SEQUENCES = PolicyGradientLoss(
    ratio="sequence", importance="sequence", importance_cap=1.5, llds_coef=0.3, clip="cispo"
)
FIELDS = ("entropy", "new_logp", "old_logp", "ref_logp", "value", "teacher_logp")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Models, data and objective of one training."""

    objective: LossFunction
    units: Callable[[int], list[SampleUnit]] = units
    kind: Kind = "qwen3"
    tied: bool = False
    spec: dict[str, Any] = field(default_factory=dict)
    optim: dict[str, Any] = field(default_factory=dict)
    teacher: bool = False
    guide: int | None = None  # number of words of the teacher that are compared


CASES = {
    "sft": Case(objective=CrossEntropyLoss()),
    "sft-tied": Case(objective=CrossEntropyLoss(), kind="llama", tied=True),
    "sft-mla": Case(objective=CrossEntropyLoss(), kind="mla"),
    "contrastive": Case(objective=ContrastiveLoss(alpha=0.2), units=pairs),
    "rl-tokens": Case(
        objective=TOKENS,
        kind="llama",
        spec={"reference": True, "critic": CriticConfig(backbone="separate")},
    ),
    "rl-sequences": Case(objective=SEQUENCES, spec={"critic": CriticConfig(backbone="policy")}),
    "distil-sampled": Case(objective=PolicyGradientLoss(), teacher=True),
    "distil-top-k": Case(
        objective=DistillationLoss(policy_loss=PolicyGradientLoss()),
        teacher=True,
        guide=5,
        tied=True,
    ),
    "lora": Case(objective=TOKENS, spec={"reference": True, "lora": LoraConfig(rank=4, alpha=8)}),
    "activation-checkpointing": Case(
        objective=CrossEntropyLoss(), optim={"activation_checkpointing": True}
    ),
    "lora-distil": Case(
        objective=DistillationLoss(policy_loss=PolicyGradientLoss()),
        kind="llama",
        spec={"reference": True, "lora": LoraConfig(rank=4, alpha=8)},
        guide=WORDS,
    ),
    "fewer-units-than-ranks": Case(objective=TOKENS, units=partial(units, groups=1)),
}


def train(models: Models, case: Case, steps: int) -> tuple[list[dict[str, float]], list[Sample]]:
    """Return the metrics of all steps and their samples as filled by the models."""
    rows, samples = [], []
    for number in range(steps // 2):
        chosen = case.units(number)
        total = weight_of(chosen)
        fill(models, chosen, case)
        guide = (
            TeacherReference(models.teacher or models.reference, case.guide) if case.guide else None
        )
        for _ in range(2):  # the ratio differs from 1 in the second step
            models.trainer.done = len(rows)
            row = models.trainer.step(
                chosen, case.objective, total, TEMPERATURE, guide, store_scores
            )
            if models.critic:
                models.critic.done = len(rows)
                row |= {f"critic/{k}": v for k, v in models.critic.step(chosen, total).items()}
            rows.append(row)
        models.trainer.drop_gradients()
        samples += [sample for unit in chosen for sample in unit]
    return rows, samples


def fill(models: Models, chosen: Sequence[SampleUnit], case: Case) -> None:
    """Fill the samples with the scores of the models before the steps."""
    if not isinstance(case.objective, CrossEntropyLoss | ContrastiveLoss):
        models.trainer.fill_logprobs(chosen, "old_logp", TEMPERATURE)
    if models.reference:
        models.reference.fill_logprobs(chosen, "ref_logp", TEMPERATURE)
    if models.critic:
        models.critic.fill_values(chosen)
    if models.teacher:
        for sample in (sample for unit in chosen for sample in unit):
            sample.teacher_view = behind_a_hint(sample)
        TeacherScorer(model=models.teacher).fill_logprobs(chosen, TEMPERATURE)


def behind_a_hint(sample: Sample) -> Sample:
    """Return the same trained tokens in a longer text, where other ranks hold them."""
    hint = np.arange(1, 31, dtype=np.int64) % WORDS
    none = np.zeros(30 + len(sample), np.float32)
    weight = np.concatenate([np.zeros(30, np.float32), sample.weight])
    return Sample(np.concatenate([hint, sample.ids]), weight, none, none, none, none)


def compare(case: Case, layout: str, steps: int, pool: Pool, folder: Path) -> None:
    data, context = LAYOUTS[layout]
    start = write_model(folder / "start", case.kind, case.tied)
    settings = {"lr": 1e-3, "micro_batch_tokens": 120 // context, **case.optim}
    teacher = write_model(folder / "teacher", case.kind, seed=1) if case.teacher else None
    spec = ModelsSpec(start=start, optim=Optim(**settings), teacher=teacher, **case.spec)
    alone = plain(spec)
    rows, samples = train(alone, case, steps)
    weights, before = written(alone, folder / "alone"), written(plain(spec), folder / "before")
    with sharded(pool, folder, spec, data, context) as models:
        found, others = train(models, case, steps)
        spread = written(models, folder / "spread")
    for row, other in zip(rows, found, strict=True):
        counts = [name for name in row if name.endswith("fraction")]
        for name in counts:  # a token near a threshold may fall on either side of it
            assert other.pop(name) == pytest.approx(row.pop(name), abs=0.01)
        assert other == pytest.approx(row, rel=1e-4, abs=1e-5)
    for sample, other in zip(samples, others, strict=True):
        for name in FIELDS:
            mine, its = getattr(sample, name), getattr(other, name)
            # small differences of many weights add up in one token
            np.testing.assert_allclose(its, mine, rtol=1e-4, atol=1e-4)
    assert gap(before, weights) > 1e-3  # the training changed the weights
    assert parted(before, weights, spread) < 1e-3


LAYOUTS = {"2": (2, 1), "1x2": (1, 2), "4": (4, 1), "2x2": (2, 2), "1": (1, 1), "1x4": (1, 4)}
# One layout per case with few steps; the other combinations take minutes.
QUICK = {
    "sft": "2",
    "sft-tied": "2x2",
    "sft-mla": "1x2",
    "contrastive": "2",
    "rl-tokens": "2",
    "rl-sequences": "1x2",
    "distil-sampled": "1x2",
    "distil-top-k": "1x2",
    "lora": "1x2",
    "activation-checkpointing": "1x2",
    "lora-distil": "2",
    "fewer-units-than-ranks": "4",
}


@pytest.mark.long
@pytest.mark.parametrize(("case", "layout"), QUICK.items())
def test_ranks_train_as_one_process(case: str, layout: str, pool: Pool, tmp_path: Path) -> None:
    compare(CASES[case], layout, FEW, pool, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_so_they_do_in_every_layout(case: str, layout: str, pool: Pool, tmp_path: Path) -> None:
    compare(CASES[case], layout, MANY, pool, tmp_path)


LORA = LoraConfig(rank=4, alpha=8)


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "lora"), [("1x2", None), pytest.param("2", LORA, marks=pytest.mark.slow)]
)
def test_bfloat16_is_as_far_from_float32_as_in_one_process(
    layout: str, lora: LoraConfig | None, pool: Pool, tmp_path: Path
) -> None:
    compare_roundings(layout, lora, pool, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_so_it_is_in_every_layout(
    layout: str, lora: LoraConfig | None, pool: Pool, tmp_path: Path
) -> None:
    compare_roundings(layout, lora, pool, tmp_path)


def compare_roundings(layout: str, lora: LoraConfig | None, pool: Pool, tmp_path: Path) -> None:
    """Compare roundings, which differ in ranks because gradients are rounded before their sum."""
    case, start = CASES["sft"], write_model(tmp_path / "start")
    exact = ModelsSpec(start=start, optim=Optim(lr=1e-3, micro_batch_tokens=120), lora=lora)
    spec = replace(exact, dtype="bfloat16")
    expected, _ = train(plain(exact), case, MANY)
    alone, _ = train(plain(spec), case, MANY)
    with sharded(pool, tmp_path, spec, *LAYOUTS[layout]) as models:
        found, _ = train(models, case, MANY)
        weights = written(models, tmp_path / "spread")
    for name in ("loss", "grad_norm"):
        exactly = np.array([row[name] for row in expected])
        apart = np.abs(exactly - [row[name] for row in alone])
        spread = np.abs(exactly - [row[name] for row in found])
        assert 0 < spread.mean() < 2 * apart.mean()
    # the written weights are the masters, in float32
    assert all(w.dtype == torch.float32 for w in weights.values())
    assert any((w != w.bfloat16()).any() for w in weights.values())
