"""Costs of the reinforcement learning of a model: time, rollouts, calls and tokens.

OTC (arXiv 2504.14870) claims that fewer calls also make training faster. A table over seeds reports
the costs of each of its models, regardless of that claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

MetricsRows = Sequence[Mapping[str, Any]]


def compute_training_cost(
    stages: Sequence[str], curves: Mapping[str, Sequence[MetricsRows]]
) -> dict[str, float] | None:
    """Return the means over seeds of the costs of the reinforcement learning stages among `stages`,
    a model's lineage: seconds of their steps, sampled rollouts, executed calls, and tokens written
    by the policy.

    `curves` has the metric rows of every such stage, of every seed. None if there is no such stage,
    or if its rows do not count rollouts, as in earlier versions.
    """
    sampled = [curves[stage] for stage in stages if stage in curves]
    seeds = [[row for rows in seed for row in rows] for seed in zip(*sampled, strict=True)]
    if not seeds or any("rollouts" not in row for rows in seeds for row in rows):
        return None
    sums_per_seed = [_sum_rows(rows) for rows in seeds]
    return {key: fmean(sums[key] for sums in sums_per_seed) for key in sums_per_seed[0]}


def _sum_rows(rows: MetricsRows) -> dict[str, float]:
    return {
        "seconds": sum(row["seconds"] for row in rows),
        "rollouts": sum(row["rollouts"] for row in rows),
        "calls": sum(row["rollouts"] * row["calls_mean"] for row in rows),
        "tokens": sum(row["rollouts"] * row["policy_tokens_mean"] for row in rows),
    }
