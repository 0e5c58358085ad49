"""Advantages from rewards, for two rollouts with an observation between their turns."""

from typing import Any

import numpy as np
import pytest

from fieldcraft.config.rl import Rl
from fieldcraft.train.batch import Sample, to_sample
from fieldcraft.train.credit import ScoredRollout, assign_advantages
from fieldcraft.types import Author, Segment, Task, Trajectory

PROMPT = Segment(Author.PROMPT, [1, 2], "")
READ = Segment(Author.TOOL, [7, 8, 9], "")


def turn(size: int) -> Segment:
    return Segment(Author.POLICY, [3] * size, "", [-1.0] * size)


def sample(*segments: Segment) -> Sample:
    return to_sample(Trajectory(Task("q", "?", ()), [PROMPT, *segments]), {Author.POLICY})


def two() -> tuple[Sample, Sample]:
    """Return a sample of three tokens around an observation and a sample of one token."""
    return sample(turn(2), READ, turn(1)), sample(turn(1))


def rl(**given: Any) -> Rl:
    stage = {"type": "rl", "steps": 1, "optim": {"lr": 1.0}, "advantage_scale": "none"}
    return Rl.model_validate(stage | given)


def spoken(found: Sample, field: str = "advantage") -> list[float]:
    """Return the values at the policy's tokens, after a check that all others are zero."""
    values = getattr(found, field)
    assert (values[found.weight == 0] == 0).all()
    return values[found.weight > 0].tolist()


@pytest.mark.parametrize(
    ("settings", "advantages"),
    [  # rewards 1, 0, 0.5: the mean is 0.5, the deviation sqrt(1 / 6)
        ({"baseline": "none"}, [1, 0, 0.5]),
        ({"baseline": "group"}, [0.5, -0.5, 0]),
        ({"baseline": "group", "advantage_scale": "group"}, [1.5**0.5, -(1.5**0.5), 0]),
        ({"baseline": "leave-one-out"}, [0.75, -0.75, 0]),
        # three tokens of 1, one of 0, one of 0.5: mean 0.7, variance 0.16
        ({"baseline": "none", "advantage_scale": "batch"}, [0.75, -1.75, -0.5]),
    ],
)
def test_advantages_of_a_group(settings: dict[str, Any], advantages: list[float]) -> None:
    long, short = two()
    third = sample(turn(1))
    group = [
        ScoredRollout((long,), 1.0),
        ScoredRollout((short,), 0.0),
        ScoredRollout((third,), 0.5),
    ]
    assign_advantages([group], rl(**settings))
    assert spoken(long) == pytest.approx([advantages[0]] * 3, abs=1e-4)
    assert spoken(short) + spoken(third) == pytest.approx(advantages[1:], abs=1e-4)


def test_groups_are_their_own_and_the_batch_is_all_of_them() -> None:
    one, other = two(), two()
    groups = [[ScoredRollout((s,), r) for s, r in zip(g, r, strict=True)] for g, r in
              ((one, (1.0, 0.0)), (other, (5.0, 5.0)))]  # fmt: skip
    assign_advantages(groups, rl(baseline="group"))
    assert [spoken(s)[0] for s in (*one, *other)] == [0.5, -0.5, 0, 0]
    assign_advantages(groups, rl(baseline="group", advantage_scale="batch"))
    # tokens: 0.5 three times, -0.5, 0 four times; mean 1 / 8, variance 1 / 8 - 1 / 64
    deviation = (7 / 64) ** 0.5
    assert [spoken(s)[0] for s in (*one, *other)] == pytest.approx(
        [x / deviation for x in (0.375, -0.625, -0.125, -0.125)], abs=1e-4
    )


def test_a_rollout_that_is_not_trained_on_still_counts_in_its_group() -> None:
    long, _ = two()
    cut = to_sample(Trajectory(Task("q", "?", ()), [PROMPT, turn(4)]), ())
    assign_advantages(
        [[ScoredRollout((long,), 1.0), ScoredRollout((cut,), 0.0)], []], rl(baseline="group")
    )
    assert spoken(long) == [0.5] * 3
    assert (cut.advantage == 0).all()


def test_kl_in_the_reward_is_paid_from_each_token_on() -> None:
    """The three tokens pay 0.1, 0.2 and -0.4 times beta; the one token pays for 20, not for 30."""
    long, short = two()
    trained = np.flatnonzero(long.weight)
    long.ref_logp = long.old_logp.copy()
    long.ref_logp[trained] -= [0.1, 0.2, -0.4]
    short.ref_logp = short.old_logp - np.float32(30)
    group = [ScoredRollout((long,), 1.0), ScoredRollout((short,), 3.0)]
    settings = {"kl_placement": "reward", "kl_coef": 0.1}
    assign_advantages([group], rl(baseline="none", **settings))
    assert spoken(long) == pytest.approx([1.01, 1.02, 1.04], abs=1e-5)
    assert spoken(short) == pytest.approx([1.0])
    # a baseline uses whole returns, 1.01 and 1
    assign_advantages([group], rl(baseline="group", **settings))
    assert spoken(long) == pytest.approx([0.005, 0.015, 0.035], abs=1e-5)
    assign_advantages([group], rl(baseline="none", kl_coef=0.1))  # part of the loss
    assert spoken(long) == [1.0] * 3


def test_gae_does_not_see_the_observation() -> None:
    """The result equals the result for adjacent turns, regardless of the critic's values in
    between.
    """
    with_tool, _ = two()
    bare = sample(turn(3))
    for found in (with_tool, bare):
        found.value = np.full(len(found), 77, np.float32)
        found.value[found.weight > 0] = [0.2, 0.4, 0.5]
    critic = {"gamma": 0.9, "gae_lambda": 0.8}
    settings = rl(baseline="critic", critic=critic)
    assign_advantages([[ScoredRollout((with_tool,), 1.0)], [ScoredRollout((bare,), 1.0)]], settings)
    for found in (with_tool, bare):
        assert spoken(found) == pytest.approx([0.4552, 0.41, 0.5])
        assert spoken(found, "target") == pytest.approx([0.6552, 0.81, 1.0])


def test_whitening_leaves_the_critics_targets_alone() -> None:
    long, short = two()
    long.value, short.value = long.scatter(np.zeros(3)), short.scatter(np.zeros(1))
    assign_advantages(
        [[ScoredRollout((long,), 1.0), ScoredRollout((short,), 0.0)]],
        rl(baseline="critic", advantage_scale="batch"),
    )
    assert spoken(long) + spoken(short) == pytest.approx([3**-0.5] * 3 + [-(3**0.5)], abs=1e-4)
    assert spoken(long, "target") + spoken(short, "target") == [1, 1, 1, 0]


def test_a_floor_lifts_right_rollouts_only() -> None:
    """Correct rollouts have rewards 1 and 0.2, and a wrong one has 0. The mean is 0.4."""
    long, short = two()
    wrong = sample(turn(1))
    group = [
        ScoredRollout((long,), 1.0, True),
        ScoredRollout((short,), 0.2, True),
        ScoredRollout((wrong,), 0.0),
    ]
    assign_advantages([group], rl(baseline="group"))
    assert spoken(short) == pytest.approx([-0.2])
    assign_advantages([group], rl(baseline="group", advantage_floor="correct"))
    assert spoken(long) == pytest.approx([0.6] * 3)
    assert spoken(short) == [0]
    assert spoken(wrong) == pytest.approx([-0.4])
