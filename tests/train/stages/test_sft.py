"""Supervised steps: their examples, their tokens, and the divisor of the loss."""

import math
from pathlib import Path

import pytest
import torch

from fieldcraft.train.epochs import draw_epoch_batch
from fieldcraft.train.stages.contrastive import ContrastiveStage
from fieldcraft.train.stages.sft import SftStage
from fieldcraft.types import Author, Segment, Task, Trajectory, UserError
from training_parts import make_trainer, plain_logprobs_of, step


def trajectory(name: str, *segments: tuple[Author, list[int]]) -> Trajectory:
    return Trajectory(Task(name, "?", ()), [Segment(author, ids, "") for author, ids in segments])


DATA = [
    trajectory(str(i), (Author.PROMPT, [10 + i, 11]), (Author.POLICY, list(range(20, 23 + i))))
    for i in range(5)
]


def test_batches_are_shuffled_epochs_end_to_end() -> None:
    indices = [
        i
        for step in range(7)
        for i in draw_epoch_batch(seed=1, step=step, num_examples=10, batch_size=4)
    ]
    assert sorted(indices[:10]) == sorted(indices[10:20]) == list(range(10))
    assert indices[:10] != indices[10:20] != list(range(10))
    assert draw_epoch_batch(1, 3, 10, 4) == indices[12:16]  # a function of the step number alone
    assert draw_epoch_batch(2, 3, 10, 4) != indices[12:16]


def test_a_batch_may_be_larger_than_the_data() -> None:
    whole = [i for step in range(3) for i in draw_epoch_batch(0, step, 3, 7)]
    assert sorted(whole) == sorted(list(range(3)) * 7)


def test_the_loss_is_the_mean_over_the_trained_tokens_of_the_batch(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    chosen = [DATA[i] for i in draw_epoch_batch(0, 2, len(DATA), 3)]
    logp = torch.cat([plain_logprobs_of(trainer.model, t.ids)[1:] for t in chosen])
    trainer.done = 2
    row = step(SftStage.from_trajectories(trainer, DATA, {Author.POLICY}, batch_size=3, seed=0), 2)
    assert row["loss"] == pytest.approx(-logp.mean().item(), rel=1e-5)
    assert row["tokens"] == sum(len(t.ids) for t in chosen)


def test_steps_lower_the_loss(tmp_path: Path) -> None:
    stage = SftStage.from_trajectories(
        make_trainer(tmp_path), DATA, {Author.POLICY}, batch_size=5, seed=0
    )
    losses = [step(stage, number)["loss"] for number in range(8)]
    assert losses[-1] < losses[0] / 2


def test_a_demonstration_without_a_trainable_token_is_named(tmp_path: Path) -> None:
    empty = trajectory("the empty one", (Author.PROMPT, [1, 2]), (Author.TOOL, [3]))
    with pytest.raises(UserError, match="'the empty one' has no trainable token"):
        SftStage.from_trajectories(make_trainer(tmp_path), [*DATA, empty], {Author.POLICY}, 2, 0)


def test_only_the_last_segments_of_a_pair_are_compared(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_grad_norm=1e9)
    prefix = [(Author.PROMPT, [10, 11, 12]), (Author.POLICY, [20, 21])]
    chosen = trajectory("c", *prefix, (Author.POLICY, [30, 31, 32]))
    rejected = trajectory("r", *prefix, (Author.POLICY, [40, 41]))
    p_chosen = plain_logprobs_of(trainer.model, chosen.ids)[-3:].mean().item()
    p_rejected = plain_logprobs_of(trainer.model, rejected.ids)[-2:].mean().item()
    row = step(
        ContrastiveStage.from_pairs(trainer, [(chosen, rejected)], 0.3, batch_size=2, seed=0), 0
    )
    difference = p_chosen - p_rejected
    expected = math.log1p(math.exp(-difference)) - 0.3 * p_chosen
    assert row["loss"] == pytest.approx(expected, rel=1e-4)
    assert row["chosen_logp"] == pytest.approx(p_chosen, rel=1e-4)
    assert row["rejected_logp"] == pytest.approx(p_rejected, rel=1e-4)
    assert row["pair_accuracy"] == (difference > 0)
    assert row["tokens"] == 2 * (8 + 7)


def test_training_on_pairs_turns_the_preference(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    prefix = [(Author.PROMPT, [10, 11, 12])]
    ways = [trajectory("", *prefix, (Author.POLICY, ids)) for ids in ([30, 31], [40, 41, 42])]
    stage = ContrastiveStage.from_pairs(
        trainer, [(ways[0], ways[1])], alpha=0.0, batch_size=1, seed=0
    )
    assert [step(stage, number)["pair_accuracy"] for number in range(12)][-1] == 1
    stage = ContrastiveStage.from_pairs(
        trainer, [(ways[1], ways[0])], alpha=0.0, batch_size=1, seed=0
    )
    assert [step(stage, number)["pair_accuracy"] for number in range(12)][0::11] == [0, 1]
