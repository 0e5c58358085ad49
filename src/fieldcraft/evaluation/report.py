"""`report.json`, the machine-readable report of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1
JUDGE_PREFIX = "judge/"  # of the metrics of what a judge costs
EVALUATION_STAGE = "evaluation"  # represents all evaluations together
REPORT_KEYS = ("schema", "recipe", "seed", "device", "seconds", "stages", "evals", "pairwise")


@dataclass(frozen=True, slots=True)
class StageSummary:
    """A completed stage: its name, its wall time in seconds without its evaluation, and its last
    metrics. The stage EVALUATION has the time of all evaluations."""

    name: str
    seconds: float
    metrics: dict[str, Any] = field(default_factory=dict)


def build_report(
    *,
    recipe: str,
    seed: int,
    device: str,
    stages: Sequence[StageSummary],
    evals: Mapping[str, dict[str, Any]],
    comparisons: Sequence[Mapping[str, Any]],
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of `report.json`, schema 1.

    `evals` maps a stage or workflow to its result of `summary.summarise_evaluation` and "seconds";
    `comparisons` become `pairwise`; `extra` adds keys (resolved config, versions). Raises
    ValueError if `extra` replaces a reserved key.
    """
    if reserved := sorted(set(extra) & set(REPORT_KEYS)):
        raise ValueError(f"extra may not replace {', '.join(reserved)}")
    return {
        "schema": SCHEMA_VERSION,
        "recipe": recipe,
        "seed": seed,
        "device": device,
        "seconds": sum(stage.seconds for stage in stages),
        "stages": [
            {"name": s.name, "seconds": s.seconds, "metrics": dict(s.metrics)} for s in stages
        ],
        "evals": dict(evals),
        "pairwise": [dict(comparison) for comparison in comparisons],
        **extra,
    }


def sum_judging(
    curves: Mapping[str, Sequence[Mapping[str, Any]]], evaluations: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what the judge cost in the steps of the stages and in the evaluations, as the report
    key `judging`; empty without requests."""
    rows = [row for part in curves.values() for row in part]
    totals = {"training": _sum_costs(rows), "evaluation": _sum_costs([*evaluations.values()])}
    judged = {name: total for name, total in totals.items() if total}
    return {"judging": judged} if judged else {}


def _sum_costs(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    keys = dict.fromkeys(k for e in entries for k in e if k.startswith(JUDGE_PREFIX))
    return {k.removeprefix(JUDGE_PREFIX): sum(e.get(k, 0) for e in entries) for k in keys}
