"""Advantages, computed by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.config.rl import Rl
from fieldcraft.train.advantages import (
    EPSILON,
    ScoredRollout,
    StepBatch,
    compute_advantages,
    discounted_returns,
    gae,
    group_mean_baseline,
    group_std,
    leave_one_out_baseline,
    whiten,
)
from fieldcraft.train.batch import Sample, to_sample
from fieldcraft.types import Author, Segment, Task, Trajectory

PROMPT = Segment(Author.PROMPT, [1, 2], "")
READ = Segment(Author.TOOL, [7, 8, 9], "")
some_floats = st.lists(st.floats(-5, 5), min_size=1, max_size=8)


# -- baselines ----------------------------------------------------------------------------------


def test_the_mean_of_the_group() -> None:
    assert group_mean_baseline([1.0, 0.0, 0.0, 1.0, 1.0]) == [0.6] * 5
    assert group_mean_baseline([0.3, 0.3, 0.3]) == [0.3] * 3  # exact: equal rewards have no signal


def test_the_mean_of_the_others() -> None:
    # for 1, 0, 0, 3: the sum of the others, divided by 3
    assert leave_one_out_baseline([1.0, 0.0, 0.0, 3.0]) == pytest.approx([1.0, 4 / 3, 4 / 3, 1 / 3])
    assert leave_one_out_baseline([0.7]) == [0.7]


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_leaving_one_out_stretches_the_distance_from_the_mean(rewards: list[float]) -> None:
    """r - mean of the others = G / (G - 1) times (r - mean of all)."""
    size = len(rewards)
    out = np.subtract(rewards, leave_one_out_baseline(rewards))
    centred = np.subtract(rewards, group_mean_baseline(rewards))
    np.testing.assert_allclose(out, centred * size / (size - 1), atol=1e-9)


def test_the_deviation_is_that_of_the_population() -> None:
    # mean 2, squared distances 4, 0, 4: variance 8 / 3 over the group, not 8 / 2
    assert group_std([0.0, 2.0, 4.0]) == pytest.approx((8 / 3) ** 0.5 + EPSILON)
    assert group_std([1.0, 1.0]) == EPSILON


# -- generalised advantage estimation -----------------------------------------------------------


def test_gae_by_hand() -> None:
    # deltas from the end: 1 - 0.5, 0.9 * 0.5 - 0.4, 0.9 * 0.4 - 0.2
    # advantages: 0.5, 0.05 + 0.72 * 0.5, 0.16 + 0.72 * 0.41
    found = gae(np.array([0.0, 0.0, 1.0]), np.array([0.2, 0.4, 0.5]), gamma=0.9, lam=0.8)
    assert found.tolist() == pytest.approx([0.4552, 0.41, 0.5])


def test_gae_at_its_two_ends() -> None:
    rewards, values = np.array([0.1, 0.0, 1.0]), np.array([0.2, 0.4, 0.5])
    one_step = gae(rewards, values, gamma=1.0, lam=0.0)
    assert one_step.tolist() == pytest.approx([0.1 + 0.4 - 0.2, 0.5 - 0.4, 1.0 - 0.5])
    whole = gae(rewards, values, gamma=1.0, lam=1.0)
    assert whole.tolist() == pytest.approx([1.1 - 0.2, 1.0 - 0.4, 1.0 - 0.5])


def test_returns_to_go() -> None:
    assert discounted_returns(np.array([1.0, 2.0, 4.0])).tolist() == [7, 6, 4]
    assert discounted_returns(np.array([1.0, 2.0, 4.0]), gamma=0.5).tolist() == [3, 4, 4]
    assert discounted_returns(np.zeros(0)).size == 0


@given(some_floats, st.floats(0.1, 1), st.floats(0, 1))
def test_perfect_values_leave_no_advantage(rewards: list[float], gamma: float, lam: float) -> None:
    given_T = np.array(rewards)
    values_T = discounted_returns(given_T, gamma)
    np.testing.assert_allclose(gae(given_T, values_T, gamma=gamma, lam=lam), 0, atol=1e-9)


# -- whitening ----------------------------------------------------------------------------------


def test_whitening_counts_tokens_and_not_rollouts() -> None:
    # three tokens of 1 and one of -1: mean 0.5, variance 3 * 0.25 / 4 + 2.25 / 4 = 0.75
    long, short = whiten([np.ones(3), -np.ones(1)])
    assert long.tolist() == pytest.approx([0.5 / 0.75**0.5] * 3, rel=1e-5)
    assert short.tolist() == pytest.approx([-1.5 / 0.75**0.5], rel=1e-5)


def test_whitening_what_is_all_the_same_gives_nothing() -> None:
    assert [part.tolist() for part in whiten([np.ones(2), np.ones(1), np.zeros(0)])] == [
        [0, 0],
        [0],
        [],
    ]
    assert whiten([]) == []


# -- advantages of rollouts, with an observation between their turns -----------------------------


def turn(size: int) -> Segment:
    return Segment(Author.POLICY, [3] * size, "", [-1.0] * size)


def sample(*segments: Segment) -> Sample:
    return to_sample(Trajectory(Task("q", "?", ()), [PROMPT, *segments]), {Author.POLICY})


def two() -> tuple[Sample, Sample]:
    """Return a sample of three tokens around an observation and a sample of one token."""
    return sample(turn(2), READ, turn(1)), sample(turn(1))


def scored(found: Sample, reward: float, correct: bool = False) -> ScoredRollout:
    rewards: dict[str, float | None] = {"em": float(correct)}
    task = Task("q", "?", ())
    return ScoredRollout(Trajectory(task, [PROMPT], rewards=rewards, reward=reward), (found,))


def assign(groups: list[list[ScoredRollout]], settings: Rl) -> None:
    batch = StepBatch(groups)
    batch.scatter(compute_advantages(batch, settings), "advantage")


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
        scored(long, 1.0),
        scored(short, 0.0),
        scored(third, 0.5),
    ]
    assign([group], rl(**settings))
    assert spoken(long) == pytest.approx([advantages[0]] * 3, abs=1e-4)
    assert spoken(short) + spoken(third) == pytest.approx(advantages[1:], abs=1e-4)


def test_groups_are_their_own_and_the_batch_is_all_of_them() -> None:
    one, other = two(), two()
    groups = [[scored(s, r) for s, r in zip(g, r, strict=True)] for g, r in
              ((one, (1.0, 0.0)), (other, (5.0, 5.0)))]  # fmt: skip
    assign(groups, rl(baseline="group"))
    assert [spoken(s)[0] for s in (*one, *other)] == [0.5, -0.5, 0, 0]
    assign(groups, rl(baseline="group", advantage_scale="batch"))
    # tokens: 0.5 three times, -0.5, 0 four times; mean 1 / 8, variance 1 / 8 - 1 / 64
    deviation = (7 / 64) ** 0.5
    assert [spoken(s)[0] for s in (*one, *other)] == pytest.approx(
        [x / deviation for x in (0.375, -0.625, -0.125, -0.125)], abs=1e-4
    )


def test_a_rollout_that_is_not_trained_on_still_counts_in_its_group() -> None:
    long, _ = two()
    cut = to_sample(Trajectory(Task("q", "?", ()), [PROMPT, turn(4)]), ())
    assign([[scored(long, 1.0), scored(cut, 0.0)], []], rl(baseline="group"))
    assert spoken(long) == [0.5] * 3
    assert (cut.advantage == 0).all()


def test_kl_in_the_reward_is_paid_from_each_token_on() -> None:
    """The three tokens pay 0.1, 0.2 and -0.4 times beta; the one token pays for 20, not for 30."""
    long, short = two()
    trained = np.flatnonzero(long.weight)
    long.ref_logp = long.old_logp.copy()
    long.ref_logp[trained] -= [0.1, 0.2, -0.4]
    short.ref_logp = short.old_logp - np.float32(30)
    group = [scored(long, 1.0), scored(short, 3.0)]
    settings = {"kl_placement": "reward", "kl_coef": 0.1}
    assign([group], rl(baseline="none", **settings))
    assert spoken(long) == pytest.approx([1.01, 1.02, 1.04], abs=1e-5)
    assert spoken(short) == pytest.approx([1.0])
    # a baseline uses whole returns, 1.01 and 1
    assign([group], rl(baseline="group", **settings))
    assert spoken(long) == pytest.approx([0.005, 0.015, 0.035], abs=1e-5)
    assign([group], rl(baseline="none", kl_coef=0.1))  # part of the loss
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
    assign([[scored(with_tool, 1.0)], [scored(bare, 1.0)]], settings)
    for found in (with_tool, bare):
        assert spoken(found) == pytest.approx([0.4552, 0.41, 0.5])
        assert spoken(found, "target") == pytest.approx([0.6552, 0.81, 1.0])


def test_whitening_leaves_the_critics_targets_alone() -> None:
    long, short = two()
    long.value, short.value = long.scatter(np.zeros(3)), short.scatter(np.zeros(1))
    assign(
        [[scored(long, 1.0), scored(short, 0.0)]],
        rl(baseline="critic", advantage_scale="batch"),
    )
    assert spoken(long) + spoken(short) == pytest.approx([3**-0.5] * 3 + [-(3**0.5)], abs=1e-4)
    assert spoken(long, "target") + spoken(short, "target") == [1, 1, 1, 0]


def test_a_floor_lifts_right_rollouts_only() -> None:
    """Correct rollouts have rewards 1 and 0.2, and a wrong one has 0. The mean is 0.4."""
    long, short = two()
    wrong = sample(turn(1))
    group = [
        scored(long, 1.0, True),
        scored(short, 0.2, True),
        scored(wrong, 0.0),
    ]
    assign([group], rl(baseline="group"))
    assert spoken(short) == pytest.approx([-0.2])
    assign([group], rl(baseline="group", advantage_floor="correct"))
    assert spoken(long) == pytest.approx([0.6] * 3)
    assert spoken(short) == [0]
    assert spoken(wrong) == pytest.approx([-0.4])
