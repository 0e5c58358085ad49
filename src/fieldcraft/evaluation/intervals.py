"""Confidence intervals (95 %) of shares of clustered questions, in one run and over seeds.

Questions about the same entity tend to be correct or wrong together, so they carry less information
than independent ones. The loss is the design effect: the variance of their share with clusters,
divided by the variance without. An interval is computed for the effective size n / (design effect)
instead of n (Korn and Graubard 1998, "Confidence intervals for proportions with small expected
number of positive counts estimated from survey data"; Dean and Pagano 2015, "Evaluating confidence
interval methods for binomial proportions in clustered surveys", who recommend Wilson's interval
with it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from math import sqrt
from statistics import fmean, stdev

Interval = tuple[float, float]

Z975 = 1.959963984540054  # the 97.5 % quantile of the standard normal distribution
# 97.5 % quantiles of Student's t distribution with 1, 2, ... degrees of freedom.
T975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def wilson_interval(rate: float, n: float) -> Interval:
    """Return the interval of a proportion `rate` observed in `n` independent trials, or in trials
    of that effective size.

    Source: Wilson 1927; recommended over the normal interval, which has zero width at 0 and 1, by
    Brown, Cai and DasGupta 2001, "Interval Estimation for a Binomial Proportion", eq. 4. In this
    form, zero trials give the whole range.
    """
    centre = (n * rate + Z975**2 / 2) / (n + Z975**2)
    half = Z975 / (n + Z975**2) * sqrt(n * rate * (1 - rate) + Z975**2 / 4)
    # exact at 0 and 1, where sum and difference are exact except for rounding
    return min(rate, max(0.0, centre - half)), max(rate, min(1.0, centre + half))


def newcombe_interval(first: tuple[int, int], second: tuple[int, int]) -> Interval:
    """Return the interval of the difference first - second of two independent proportions, each
    given as successes and trials (at least one).

    Source: Newcombe 1998, "Interval estimation for the difference between independent proportions",
    method 10: a combination of both Wilson intervals.
    """
    rates = [hits / n for hits, n in (first, second)]
    (low, high), (below, above) = (
        wilson_interval(rate, n) for rate, (_, n) in zip(rates, (first, second), strict=True)
    )
    first_rate, second_rate = rates
    down = sqrt((first_rate - low) ** 2 + (above - second_rate) ** 2)
    up = sqrt((high - first_rate) ** 2 + (second_rate - below) ** 2)
    return max(-1.0, first_rate - second_rate - down), min(1.0, first_rate - second_rate + up)


def paired_difference_interval(gained: float, lost: float, n: float) -> Interval:
    """Return the interval of the difference gained - lost, both shares of the same `n` questions or
    of that effective size. Its width is positive even without any gain or loss.

    Source: Agresti and Min 2005, "Simple improved confidence intervals for comparing matched
    proportions": the normal interval with half a question added to each of the four cells.
    """
    up, down, total = n * gained + 0.5, n * lost + 0.5, n + 2
    difference = (up - down) / total
    half = Z975 * sqrt(up + down - total * difference**2) / total
    return max(-1.0, difference - half), min(1.0, difference + half)


def effective_sample_size(values: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """Return the number of independent questions with the same information about their mean.
    `clusters` has the label of each value. A single cluster has size 0; without clusters nothing is
    lost.

    With r the distance of a value from the mean, m clusters and n questions, the design effect is

        (sum over clusters of (sum of r)^2 * m/(m-1) * (n-1)/n + k) / (sum of r^2 + 1),

    at least 1: the linearised variance over the plain one. k is the sum of squared cluster sizes
    over n, which is the effect if all values of a cluster were equal (Kish 1965). It has the weight
    of one question, so that nearly perfect answers, from which the clustering of errors cannot be
    estimated, count as clustered. Few clusters give a poor variance estimate, so n is also divided
    by the square of t with m-1 over t with n-1 degrees of freedom (Korn and Graubard).
    """
    n, sizes = len(values), Counter(clusters)
    m = len(sizes)
    if m == n:
        return n
    if m == 1:
        return 0.0
    mean = fmean(values)
    sums = dict.fromkeys(sizes, 0.0)
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] += value - mean
    between = sum(total**2 for total in sums.values()) * m / (m - 1) * (n - 1) / n
    within = sum((value - mean) ** 2 for value in values)
    prior = sum(size**2 for size in sizes.values()) / n
    effect = max(1.0, (between + prior) / (within + 1))
    return n / effect * (student_quantile(n - 1) / student_quantile(m - 1)) ** 2


def interval_over_seeds(
    means: Sequence[float], pooled: Interval, bounds: Interval = (0.0, 1.0)
) -> list[float] | None:
    """Return the interval of the mean over seeds, within `bounds`: on either side the wider of two
    intervals. None for a single seed.

    One is mean +- t s / sqrt(seeds) of the means of the seeds (Student 1908), for the variation
    between seeds. A few seeds can be equal by chance, so the other is the interval of all questions
    `pooled`, for the variation between questions.
    """
    if len(means) < 2:
        return None
    half = student_quantile(len(means) - 1) * stdev(means) / sqrt(len(means))
    low, high = min(pooled[0], fmean(means) - half), max(pooled[1], fmean(means) + half)
    return [max(bounds[0], low), min(bounds[1], high)]


def student_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t; beyond 30 degrees of freedom the value at 30,
    slightly too high."""
    return T975[min(degrees, len(T975)) - 1]
