"""Resampling on correct rollouts (GRPO-RoC of rStar2-Agent, arXiv 2508.20722, section 3.3).

More rollouts are sampled than a step trains on. Of the wrong ones any are kept, so that mistakes of
all kinds are seen. Of the right ones the clean are preferred: those with few failed calls, and
in the dialect's grammar.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from fieldcraft.types import Trajectory

WITHOUT_CALLS = 0.5  # the penalty of a right rollout that never called a tool
CLEANEST = 0.1  # added to penalties, so that a clean rollout is at most 11 times as likely as one
# whose every call failed


def resample(group: Sequence[Trajectory], size: int, rng: random.Random) -> list[Trajectory]:
    """Return `size` rollouts of a larger group, in their order, with the group's share of wrong
    ones."""
    wrong = [t for t in group if not t.right]
    right = [t for t in group if t.right]
    wrong_kept = round(len(wrong) * size / len(group))
    # Weighted sampling without replacement (Efraimidis and Spirakis 2006): the largest u^(1/w).
    chances = {id(t): rng.random() ** (CLEANEST + penalty(t)) for t in right}
    right.sort(key=lambda t: chances[id(t)], reverse=True)
    kept = {id(t) for t in (*rng.sample(wrong, wrong_kept), *right[: size - wrong_kept])}
    return [t for t in group if id(t) in kept]


def penalty(trajectory: Trajectory) -> float:
    """Return p_total = p_err + p_format: the share of the written calls that failed or could not be
    run, plus 1 for a rollout that breaks the grammar."""
    calls = trajectory.calls
    failed = sum(call.outcome.failed or not call.outcome.executed for call in calls)
    errors = failed / len(calls) if calls else WITHOUT_CALLS
    return errors + (not trajectory.well_formed)
