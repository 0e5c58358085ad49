"""Two models on the same questions: which is right more often, and which calls less for it.

Behaviours as OTC-PO's Table 3 has them (arXiv 2504.14870, section on metrics), every one a share
of the questions: ME, the same verdict with fewer calls than the baseline (more efficient); LE, the
same verdict with more (less efficient); MA, right where the baseline is wrong (more accurate); LA,
the reverse (less accurate); AE, the part of MA with fewer calls (more accurate and efficient). The
same verdict means both right or both wrong, so ME + LE + MA + LA and the share that behaves as the
baseline does (same verdict, same number of calls) make 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from fieldcraft.evals.metrics import leading, policy_tokens
from fieldcraft.types import Trajectory

Pair = tuple[Trajectory, Trajectory]  # the baseline's and the model's


def compare(
    baseline: Sequence[Trajectory], model: Sequence[Trajectory], split: str | None = None
) -> dict[str, Any]:
    """`model` against `baseline`; both hold the trajectories of the same tasks in the same order.

    Only the leading `split` counts where there is one, as in `metrics.summarise`. Pairs
    that are not gradable on both sides are left out of everything and counted; without any other
    every figure is None. What is saved is a mean a question, positive where the model spends less;
    seconds are those that a question took among all that ran beside it. `p_value` is that of
    `sign_test` on the questions that only one of the two answered right (McNemar's exact test).

    Raises ValueError if the tasks differ.
    """
    if [t.task.id for t in baseline] != [t.task.id for t in model]:
        raise ValueError("only trajectories of the same tasks, in the same order, can be compared")
    pairs = list(zip(leading(baseline, split), leading(model, split), strict=True))
    graded = [pair for pair in pairs if all(t.right is not None for t in pair)]
    gained = [(b, m) for b, m in graded if m.right and not b.right]
    lost = [(b, m) for b, m in graded if b.right and not m.right]
    same = [(b, m) for b, m in graded if b.right == m.right]

    def share(part: Sequence[Pair], holds: Callable[[int], bool] = lambda _: True) -> float | None:
        """Questions of `part` whose calls above the baseline's are as asked."""
        found = sum(holds(m.executed_calls - b.executed_calls) for b, m in part)
        return found / len(graded) if graded else None

    def saved(cost: Callable[[Trajectory], float]) -> float | None:
        total = sum(cost(b) - cost(m) for b, m in graded)
        return total / len(graded) if graded else None

    return {
        "n": len(graded),
        "ungradable": len(pairs) - len(graded),
        "gained": len(gained),
        "lost": len(lost),
        "em_difference": (len(gained) - len(lost)) / len(graded) if graded else None,
        "p_value": sign_test(len(gained), len(lost)) if graded else None,
        "more_efficient": share(same, lambda more: more < 0),
        "less_efficient": share(same, lambda more: more > 0),
        "same_behaviour": share(same, lambda more: more == 0),
        "more_accurate": share(gained),
        "less_accurate": share(lost),
        "more_accurate_and_efficient": share(gained, lambda more: more < 0),
        "calls_saved_mean": saved(lambda t: t.executed_calls),
        "tokens_saved_mean": saved(policy_tokens),
        "seconds_saved_mean": saved(lambda t: t.seconds),
    }


def sign_test(wins: int, losses: int) -> float:
    """Two-sided p-value of at least so uneven a split if both sides were equally likely: the exact
    binomial test with probability 1/2 (McNemar 1947 for paired verdicts; ties have no part)."""
    trials = wins + losses
    ways = tail = 1  # ways to win k trials, and their sum up to the smaller side
    for k in range(min(wins, losses)):
        ways = ways * (trials - k) // (k + 1)
        tail += ways
    return min(1.0, 2 * tail / 2**trials)


def against_first(
    evaluated: Mapping[str, Sequence[Trajectory]], split: str | None = None
) -> list[dict[str, Any]]:
    """Every model against the first one."""
    first, *others = evaluated
    return [_named(evaluated, first, other, split) for other in others]


def one_after_another(
    evaluated: Mapping[str, Sequence[Trajectory]], split: str | None = None
) -> list[dict[str, Any]]:
    """Every stage against the one before it."""
    return [_named(evaluated, before, after, split) for before, after in pairwise(evaluated)]


def _named(
    evaluated: Mapping[str, Sequence[Trajectory]], baseline: str, model: str, split: str | None
) -> dict[str, Any]:
    names = {"baseline": baseline, "model": model}
    return names | compare(evaluated[baseline], evaluated[model], split)
