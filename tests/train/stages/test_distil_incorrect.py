"""On-policy distillation on incorrect rollouts only: advantages by hand, and learning."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from torch import Tensor

from bandit import small_model
from distil_parts import KINDS, Ungradable, distil, good_teacher, scripted
from fieldcraft.rewards.answers import ExactMatch, StatelessReward
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.types import Trajectory, UserError
from training_parts import assert_same, step, weights


@pytest.mark.parametrize("weight", [0.0, 4.0])
def test_only_incorrect_rollouts_have_an_advantage_of_the_teacher(weight: float) -> None:
    """The first group has a right and a wrong rollout, the second one two wrong ones. The divisor
    counts all of their tokens, and the metric is the KL of all of them."""
    stage, trainer = scripted(
        Rubric([(ExactMatch(), 1.0)]), kl_rollouts="incorrect", reward_weight=weight
    )
    row = step(stage, 0)
    spoken = [sample.advantage[sample.weight > 0] for sample in trainer.samples]
    right, wrong, *equal = spoken
    assert right.tolist() == [weight * 0.5] * len(right)
    for advantages, reward in ((wrong, -weight * 0.5), (equal[0], 0.0), (equal[1], 0.0)):
        expected = reward + np.linspace(-0.5, -1.0, len(advantages))
        assert advantages.tolist() == pytest.approx(expected)
    assert trainer.totals == [sum(map(len, spoken))]
    assert row["teacher_kl"] == pytest.approx(0.75)


def test_without_a_verdict_no_rollout_is_known_to_be_incorrect() -> None:
    rubric = Rubric([(Ungradable(), 1.0)])
    with pytest.raises(UserError, match=r"^kl_rollouts: incorrect uses the reward 'em': add it to"):
        scripted(rubric, kl_rollouts="incorrect")
    scripted(rubric)
    stage, trainer = scripted(
        Rubric([(ExactMatch(), 0.0), (Ungradable(), 1.0)]), kl_rollouts="incorrect"
    )
    step(stage, 0)
    assert not trainer.samples


@dataclass
class SameVerdict(StatelessReward):
    """Verdict that is the same for all rollouts."""

    score: float
    name: str = ExactMatch.name

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [self.score] * len(group)


@pytest.mark.parametrize("kind", KINDS)
def test_correct_rollouts_leave_the_weights_and_incorrect_ones_train_as_all_do(kind: str) -> None:
    def train(score: float, rollouts: str) -> tuple[StepMetrics, dict[str, Tensor]]:
        rubric = Rubric([(SameVerdict(score), 1.0)])
        stage = distil(good_teacher(), rubric=rubric, kl_rollouts=rollouts, **KINDS[kind])
        return step(stage, 0), weights(stage.trainer.model)

    row, after = train(1.0, "incorrect")
    assert (row["loss"], row["grad_norm"]) == (0, 0)
    assert row["teacher_kl"] > 0.5
    assert_same(after, weights(small_model(1)))
    row, after = train(0.0, "incorrect")
    assert row["grad_norm"] > 0
    assert_same(after, train(1.0, "all")[1])
