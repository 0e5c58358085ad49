"""Advantages, computed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.algos.advantages import (
    EPSILON,
    discounted_returns,
    gae,
    group_mean_baseline,
    group_std,
    leave_one_out_baseline,
    whiten,
)

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
