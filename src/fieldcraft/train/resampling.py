"""Resampling on correct rollouts (GRPO-RoC of rStar2-Agent, arXiv 2508.20722, section 3.3).

More rollouts are sampled than a step trains on. Incorrect rollouts are subsampled uniformly, so
that all kinds of mistakes are represented. Among correct rollouts, clean ones are preferred: with
few failed calls, and matching the dialect's grammar.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from fieldcraft.types import Trajectory

NO_CALL_PENALTY = 0.5  # penalty of a correct rollout without tool calls
# Added to penalties, so that a clean rollout is at most 11 times as likely as one in which every
# call failed.
PENALTY_OFFSET = 0.1


def resample_on_correct(
    group: Sequence[Trajectory], size: int, rng: random.Random
) -> list[Trajectory]:
    """Return `size` rollouts of a larger group, in the original order, with the same fraction of
    incorrect ones."""
    incorrect = [t for t in group if not t.is_correct]
    correct = [t for t in group if t.is_correct]
    num_incorrect = round(len(incorrect) * size / len(group))
    # Weighted sampling without replacement (Efraimidis and Spirakis 2006): the largest u^(1/w).
    keys = {id(t): rng.random() ** (PENALTY_OFFSET + compute_penalty(t)) for t in correct}
    correct.sort(key=lambda t: keys[id(t)], reverse=True)
    selected = {
        id(t) for t in (*rng.sample(incorrect, num_incorrect), *correct[: size - num_incorrect])
    }
    return [t for t in group if id(t) in selected]


def compute_penalty(trajectory: Trajectory) -> float:
    """Return p_total = p_err + p_format: the fraction of calls that failed or were not executed,
    plus 1 for a rollout that violates the grammar."""
    calls = trajectory.calls
    failed = sum(call.outcome.failed or not call.outcome.executed for call in calls)
    errors = failed / len(calls) if calls else NO_CALL_PENALTY
    return errors + (not trajectory.well_formed)
