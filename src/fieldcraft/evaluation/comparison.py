"""Paired comparison of two models on the same questions: accuracy and calls.

Behaviours follow OTC-PO's Table 3 (arXiv 2504.14870, section on metrics), each as a share of the
questions: ME, the same verdict with fewer calls than the baseline (more efficient); LE, the same
verdict with more calls (less efficient); MA, correct where the baseline is wrong (more accurate);
LA, the reverse (less accurate); AE, the part of MA with fewer calls (more accurate and efficient).
The same verdict means both correct or both wrong, so ME + LE + MA + LA and the share that behaves
like the baseline (same verdict, same number of calls) sum to 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from math import comb
from statistics import fmean
from typing import Any

import numpy as np

from fieldcraft.evaluation.intervals import (
    Interval,
    effective_sample_size,
    interval_over_seeds,
    paired_difference_interval,
)
from fieldcraft.evaluation.summary import get_cluster, select_leading_split
from fieldcraft.records.costs import compute_acting_cost, count_policy_tokens
from fieldcraft.types import Trajectory, UserError

Pair = tuple[Trajectory, Trajectory]  # of the baseline and the model


def compare_models(
    baseline: Sequence[Trajectory],
    model: Sequence[Trajectory],
    split: str | None = None,
    names: tuple[str, str] = ("baseline", "model"),
) -> dict[str, Any]:
    """Compare `model` with `baseline`; both contain trajectories of the same tasks in the same
    order.

    Only the baseline's leading `split` is used if there is one, as in
    `summary.summarise_evaluation`. Pairs that are not gradable on both sides are excluded and
    counted; without gradable pairs every figure is None. Savings are means per question, positive
    if the model spends less; seconds are measured among concurrent questions. `p_value` is computed
    by `sign_flip_test` on the clusters of questions.

    Raises UserError, which mentions the `names` of the two, if the tasks differ.
    """
    pairs = _pair_trajectories(baseline, model, split, names)
    graded = _select_graded(pairs)
    gains = [(b, m) for b, m in graded if m.is_correct and not b.is_correct]
    losses = [(b, m) for b, m in graded if b.is_correct and not m.is_correct]
    same = [(b, m) for b, m in graded if b.is_correct == m.is_correct]

    def compute_share(
        part: Sequence[Pair], condition: Callable[[int], bool] = lambda _: True
    ) -> float | None:
        """Return the share of the questions of `part` whose calls above the baseline satisfy the
        condition."""
        count = sum(condition(m.num_executed_calls - b.num_executed_calls) for b, m in part)
        return count / len(graded) if graded else None

    def compute_saving(cost: Callable[[Trajectory], float]) -> float | None:
        total = sum(cost(b) - cost(m) for b, m in graded)
        return total / len(graded) if graded else None

    return {
        "n": len(graded),
        "ungradable": len(pairs) - len(graded),
        "gained": len(gains),
        "lost": len(losses),
        "em_difference": (len(gains) - len(losses)) / len(graded) if graded else None,
        "em_difference_ci95": list(_compute_interval([graded])) if graded else None,
        "p_value": sign_flip_test(_sum_clusters(graded)) if graded else None,
        "more_efficient": compute_share(same, lambda more: more < 0),
        "less_efficient": compute_share(same, lambda more: more > 0),
        "same_behaviour": compute_share(same, lambda more: more == 0),
        "more_accurate": compute_share(gains),
        "less_accurate": compute_share(losses),
        "more_accurate_and_efficient": compute_share(gains, lambda more: more < 0),
        "calls_saved_mean": compute_saving(lambda t: t.num_executed_calls),
        "acting_cost_saved_mean": compute_saving(compute_acting_cost),
        "tokens_saved_mean": compute_saving(count_policy_tokens),
        "seconds_saved_mean": compute_saving(lambda t: t.seconds),
    }


def compare_over_seeds(
    seeds: Sequence[tuple[Sequence[Trajectory], Sequence[Trajectory]]],
    split: str | None = None,
    names: tuple[str, str] = ("baseline", "model"),
) -> dict[str, Any]:
    """Compare one row of a table with another: (baseline, model) of every seed, as in
    `compare_models`.

    The interval is `interval_over_seeds`, which predicts the result of another seed. `p_value`
    tests only whether these models differ, on all questions of all seeds, with clusters within one
    seed. Unless every seed has a gradable question, the difference, its interval and `p_value` are
    None. Raises UserError like `compare_models`.
    """
    graded = [
        _select_graded(_pair_trajectories(baseline, model, split, names))
        for baseline, model in seeds
    ]
    changes = [_compare_verdicts(pair) for pair in chain.from_iterable(graded)]
    counts = {"n": len(changes), "gained": changes.count(1), "lost": changes.count(-1)}
    if not all(graded):
        keys = ("em_difference", "em_difference_ci95", "p_value")
        return counts | dict.fromkeys(keys) | {"em_differences": []}
    means = [fmean(map(_compare_verdicts, part)) for part in graded]
    return counts | {
        "em_difference": fmean(means),
        "em_difference_ci95": interval_over_seeds(means, _compute_interval(graded), (-1.0, 1.0)),
        "em_differences": means,
        "p_value": sign_flip_test(chain.from_iterable(map(_sum_clusters, graded))),
    }


def sign_flip_test(differences: Iterable[int]) -> float:
    """Return the two-sided p-value of the sum of each cluster's gain minus its loss.

    If both sides were equally good, the sign of every cluster would be random. The p-value is the
    share of all sign assignments whose sum is at least as far from 0, counted exactly: Fisher's
    randomisation test (1935). If every cluster is one question, it is McNemar's exact test (1947);
    clusters without a difference have no effect.
    """
    nonzero = [difference for difference in differences if difference]
    max_gain = sum(map(abs, nonzero))
    chances = np.zeros(max_gain + 1)  # of the total positive gain of the clusters
    chances[0] = 1.0
    for size in map(abs, nonzero):
        chances[size:] += chances[:-size]
        chances /= 2
    distances = np.abs(2 * np.arange(max_gain + 1) - max_gain)
    return min(1.0, float(chances[distances >= abs(sum(nonzero))].sum()))


def fisher_test(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Return the two-sided p-value of two independent proportions, each given as successes and
    trials.

    Under equal probabilities, all assignments of the successes to the trials are equally likely.
    The p-value is the share of assignments whose split is at most as likely as the observed one:
    Fisher's exact test (1935).
    """
    (hits, n), (others, m) = first, second
    ways = [comb(n, k) * comb(m, hits + others - k) for k in range(hits + others + 1)]
    return sum(way for way in ways if way <= ways[hits]) / sum(ways)


def _pair_trajectories(
    baseline: Sequence[Trajectory],
    model: Sequence[Trajectory],
    split: str | None,
    names: tuple[str, str],
) -> list[Pair]:
    if [t.task.id for t in baseline] != [t.task.id for t in model]:
        raise UserError(
            f"the evaluations '{names[0]}' and '{names[1]}' have different questions or a different"
            " order, so they cannot be compared: rename the file of the changed one"
            " to NAME.damaged, and run the same command again."
        )
    selected = set(map(id, select_leading_split(baseline, split)))
    pairs = zip(baseline, model, strict=True)
    return [pair for pair in pairs if id(pair[0]) in selected]


def _select_graded(pairs: Iterable[Pair]) -> list[Pair]:
    return [pair for pair in pairs if all(t.is_correct is not None for t in pair)]


def _compare_verdicts(pair: Pair) -> int:
    """Return 1 for an answer that is newly correct, -1 for one that is newly wrong, else 0."""
    baseline, model = pair
    return bool(model.is_correct) - bool(baseline.is_correct)


def _sum_clusters(pairs: Iterable[Pair]) -> list[int]:
    """Return the gain minus the loss of every cluster of questions."""
    sums: dict[str, int] = defaultdict(int)
    for pair in pairs:
        sums[get_cluster(pair[0].task)] += _compare_verdicts(pair)
    return list(sums.values())


def _compute_interval(parts: Sequence[Sequence[Pair]]) -> Interval:
    """Return the interval of the difference on the questions of all parts, whose clusters are
    distinct."""
    changes = [[_compare_verdicts(pair) for pair in part] for part in parts]
    n = sum(map(len, changes))
    effective = sum(
        effective_sample_size(values, [get_cluster(b.task) for b, _ in part])
        for values, part in zip(changes, parts, strict=True)
    )
    gained, lost = (sum(values.count(sign) for values in changes) / n for sign in (1, -1))
    return paired_difference_interval(gained, lost, effective)


def compare_with_first(
    evaluated: Mapping[str, Sequence[Trajectory]], split: str | None = None
) -> list[dict[str, Any]]:
    """Compare every model with the first one."""
    first, *others = evaluated
    return [_compare_by_name(evaluated, first, other, split) for other in others]


def compare_consecutive(
    evaluated: Mapping[str, Sequence[Trajectory]], split: str | None = None
) -> list[dict[str, Any]]:
    """Compare every stage with the previous one."""
    return [
        _compare_by_name(evaluated, before, after, split) for before, after in pairwise(evaluated)
    ]


def _compare_by_name(
    evaluated: Mapping[str, Sequence[Trajectory]], baseline: str, model: str, split: str | None
) -> dict[str, Any]:
    names = {"baseline": baseline, "model": model}
    comparison = compare_models(evaluated[baseline], evaluated[model], split, (baseline, model))
    return names | comparison
