"""Intervals by hand, and their coverage."""

import math
import random
from collections.abc import Callable
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.evaluation.intervals import (
    T975,
    Interval,
    effective_sample_size,
    interval_over_seeds,
    newcombe_interval,
    paired_difference_interval,
    wilson_interval,
)

# -- shares ------------------------------------------------------------------------------------


def test_wilson_interval_by_hand() -> None:
    # 8 of 10: z^2 = 3.841459, centre = (8 + 1.920729) / 13.841459 = 0.716740,
    # half = 1.959964 / 13.841459 * sqrt(1.6 + 0.960365) = 0.226578
    assert wilson_interval(0.8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-6)
    assert wilson_interval(0.0, 10) == pytest.approx((0.0, 0.277533), abs=1e-6)
    assert wilson_interval(1.0, 10) == pytest.approx((0.722467, 1.0), abs=1e-6)
    assert wilson_interval(1.0, 0) == pytest.approx((0.0, 1.0))


@given(st.integers(1, 1000), st.data())
def test_the_interval_holds_the_rate_and_mirrors(n: int, data: st.DataObject) -> None:
    rate = data.draw(st.integers(0, n)) / n
    low, high = wilson_interval(rate, n)
    assert 0.0 <= low <= rate <= high <= 1.0
    assert wilson_interval(1 - rate, n) == pytest.approx((1 - high, 1 - low))


def test_the_interval_of_two_independent_shares() -> None:
    """Example (a) of Newcombe 1998, table II, method 10; and 10 of 10 against 0 of 10, whose Wilson
    intervals are 0.277533 wide: 1 - sqrt(2) * 0.277533 = 0.607509."""
    assert newcombe_interval((56, 70), (48, 80)) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert newcombe_interval((10, 10), (0, 10)) == pytest.approx((0.6075, 1.0), abs=5e-5)


@given(st.tuples(st.integers(1, 40), st.integers(1, 40)), st.data())
def test_the_interval_of_two_shares_mirrors(n: tuple[int, int], data: st.DataObject) -> None:
    one, other = ((data.draw(st.integers(0, size)), size) for size in n)
    low, high = newcombe_interval(one, other)
    difference = one[0] / one[1] - other[0] / other[1]
    assert -1 <= low <= difference + 1e-9
    assert difference - 1e-9 <= high <= 1
    assert newcombe_interval(other, one) == pytest.approx((-high, -low))


def test_the_interval_of_a_difference_by_hand() -> None:
    # 8 of 40 gained and 3 lost: 8.5 - 3.5 of 42 is 0.119048;
    # half = 1.959964 / 42 * sqrt(8.5 + 3.5 - 42 * 0.119048^2) = 0.157595
    assert paired_difference_interval(0.2, 0.075, 40) == pytest.approx(
        (-0.038547, 0.276642), abs=1e-6
    )
    assert paired_difference_interval(0.075, 0.2, 40) == pytest.approx(
        (-0.276642, 0.038547), abs=1e-6
    )
    # nothing changed on 98 questions: half = 1.959964 / 100 * sqrt(1)
    assert paired_difference_interval(0.0, 0.0, 98) == pytest.approx((-0.01959964, 0.01959964))


# -- clusters ----------------------------------------------------------------------------------


def test_the_effective_size_by_hand() -> None:
    # Three clusters of two; mean 1/2. Sums of distances are 1, -1 and 0: 2 * 3/2 * 5/6 = 2.5.
    # Identical: the effect is 12/6 = 2; independent: 6/4 = 1.5; so (2.5 + 2) / (1.5 + 1) = 1.8.
    # t with 5 degrees of freedom over t with 2: (2.571 / 4.303)^2 = 0.356994.
    found = effective_sample_size([1, 1, 0, 0, 1, 0], list("aabbcc"))
    assert found == pytest.approx(6 / 1.8 * 0.356994, abs=1e-5)
    # All right: the data show no clusters, so each cluster counts as identical answers.
    assert effective_sample_size([1] * 6, list("aabbcc")) == pytest.approx(
        6 / 2 * 0.356994, abs=1e-5
    )
    # One of 6 in each of 40 clusters: less similar than by chance, so the effect is 1; t has 30
    # degrees of freedom or more.
    values = [1, 0, 0, 0, 0, 0] * 40
    assert effective_sample_size(values, [i // 6 for i in range(240)]) == 240


def test_without_clusters_the_size_is_the_number() -> None:
    assert effective_sample_size([1, 0, 1], "abc") == 3
    assert effective_sample_size([1], "a") == 1
    assert effective_sample_size([], "") == 0
    assert effective_sample_size([1, 0, 1], "aaa") == 0.0  # nothing is known about other clusters


def test_whole_clusters_count_as_one() -> None:
    values = [float(i % 3 == 0) for i in range(60) for _ in range(5)]
    clusters = [i for i in range(60) for _ in range(5)]
    assert effective_sample_size(values, clusters) == pytest.approx(60, rel=0.02)
    assert effective_sample_size([1.0] * 300, clusters) == pytest.approx(60)
    assert wilson_interval(1.0, 60)[0] < 0.95 < wilson_interval(1.0, 300)[0]


def coverage(truth: float, interval: Callable[[random.Random], Interval], trials: int) -> float:
    rng = random.Random(7)
    held = 0
    for _ in range(trials):
        low, high = interval(rng)
        held += low <= truth <= high
    return held / trials


@pytest.mark.parametrize(("rate", "strength"), [(0.6, 2.0), (0.9, 4.0)])
def test_coverage_where_questions_come_in_clusters(rate: float, strength: float) -> None:
    """Every cluster has its own rate, from a beta distribution; sizes differ."""
    sizes = [3, 5, 7, 9] * 15
    clusters = [number for number, size in enumerate(sizes) for _ in range(size)]

    def answers(rng: random.Random) -> list[int]:
        rates = [rng.betavariate(rate * strength, (1 - rate) * strength) for _ in sizes]
        return [rng.random() < rates[cluster] for cluster in clusters]

    def plain(rng: random.Random) -> Interval:
        return wilson_interval(fmean(answers(rng)), len(clusters))

    def clustered(rng: random.Random) -> Interval:
        values = answers(rng)
        return wilson_interval(fmean(values), effective_sample_size(values, clusters))

    assert coverage(rate, plain, 1000) < 0.90
    assert 0.92 < coverage(rate, clustered, 1000) < 0.99


# -- seeds -------------------------------------------------------------------------------------


def test_the_quantiles_are_those_of_students_distribution() -> None:
    """The density, integrated from 0 to the quantile, is 0.475."""
    for freedom, quantile in enumerate(T975, start=1):
        scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2)
        t = np.linspace(0, quantile, 200_001)
        density = (
            scale / math.sqrt(freedom * math.pi) * (1 + t**2 / freedom) ** (-(freedom + 1) / 2)
        )
        assert np.trapezoid(density, t) == pytest.approx(0.475, abs=3e-5), freedom


def test_the_interval_over_seeds() -> None:
    narrow = (0.5, 0.5)
    # s = 0.1, 4.303 * 0.1 / sqrt(3) = 0.24843...
    assert interval_over_seeds([0.4, 0.5, 0.6], narrow) == pytest.approx(
        [0.25157, 0.74843], abs=1e-4
    )
    # s = 0.05 / sqrt(2), half = 12.706 * 0.025 = 0.31765
    assert interval_over_seeds([0.9, 0.95], (0.9, 0.94)) == pytest.approx([0.60735, 1.0])
    assert interval_over_seeds([0.5], narrow) is None
    assert interval_over_seeds([0.4, 0.6] * 20, narrow) is not None  # more than the table contains
    assert interval_over_seeds([-0.9, -0.8], (-0.9, -0.8), (-1.0, 1.0)) == pytest.approx(
        [-1, -0.21470]
    )


def test_seeds_that_are_alike_by_chance_are_as_sure_as_their_questions() -> None:
    # 900 of 900: Wilson's lower end is 900 / (900 + 3.841459) = 0.995750
    assert interval_over_seeds([1.0, 1.0, 1.0], wilson_interval(1.0, 900)) == pytest.approx(
        [0.995750, 1.0], abs=1e-6
    )
    assert interval_over_seeds([0.5, 0.5], wilson_interval(0.5, 200)) == pytest.approx(
        wilson_interval(0.5, 200)
    )


def test_coverage_over_few_seeds_near_one() -> None:
    def interval(rng: random.Random, pooled: bool) -> Interval:
        means = [sum(rng.random() < 0.995 for _ in range(100)) / 100 for _ in range(3)]
        centre = fmean(means)
        found = interval_over_seeds(
            means, wilson_interval(centre, 300) if pooled else (centre, centre)
        )
        assert found is not None
        return found[0], found[1]

    assert coverage(0.995, lambda rng: interval(rng, pooled=False), 400) < 0.90
    assert coverage(0.995, lambda rng: interval(rng, pooled=True), 400) > 0.95
