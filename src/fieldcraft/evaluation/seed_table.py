"""Aggregate table over the runs of several seeds: `report.json` of a sweep.

OTC (arXiv 2504.14870) claims that fewer calls also make training faster. The table reports the
costs of the reinforcement learning of each of its models, regardless of that claim.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from fieldcraft.config.names import get_display_name
from fieldcraft.config.plan import get_seed_table_rows
from fieldcraft.config.recipe import Recipe, dump_recipe, get_first_model, get_stage_ancestry
from fieldcraft.evaluation.comparison import compare_over_seeds
from fieldcraft.evaluation.intervals import interval_over_seeds, wilson_interval
from fieldcraft.evaluation.report import SCHEMA_VERSION
from fieldcraft.evaluation.simulated_training import summarise_simulated_rows
from fieldcraft.records.tool_metrics import mean_or_none
from fieldcraft.types import Trajectory

# Means over seeds of these keys of `summary.summarise_evaluation`.
MEAN_KEYS = (
    *("f1", "calls_mean", "calls_optimal_mean", "tool_productivity", "offloading_rate"),
    *("needless_calls_mean", "missing_calls_mean", "calls_regret_mean"),
    *("call_cost_mean", "call_cost_optimal_mean", "call_cost_regret_mean", "token_cost_mean"),
    "acting_cost_per_success",
)
Report = Mapping[str, Any]
MetricsRows = Sequence[Mapping[str, Any]]


def compare_rows(
    recipe: Recipe, read_evaluation: Callable[[int, str], Sequence[Trajectory]]
) -> list[dict[str, Any]]:
    """Return the comparisons of the recipe; `read_evaluation` returns the trajectories of a seed's
    evaluation."""
    rows = get_seed_table_rows(recipe)
    return [
        {"title": title, "baseline": before, "model": after}
        | compare_over_seeds(
            [
                (read_evaluation(seed, rows[before]), read_evaluation(seed, rows[after]))
                for seed in recipe.seeds
            ],
            recipe.evaluation.leading_split,
            (rows[before], rows[after]),
        )
        for title, (before, after) in recipe.comparisons.items()
    ]


def aggregate_seeds(
    recipe: Recipe,
    reports: Mapping[int, Report],
    comparisons: Sequence[Report] = (),
    curves: Mapping[str, Sequence[MetricsRows]] | None = None,
    saved_calls: Sequence[Report] = (),
) -> dict[str, Any]:
    """Return the content of a sweep's `report.json`, schema 1, from the `report.json` of every
    seed, the result of `compare_rows`, and the metric rows of the reinforcement learning stages of
    every seed. `saved_calls` is the result of `measure_saved_calls`.

    Rates are defined as in a run's report; `splits` has the rates of each kind of questions.
    `by_calls` pools the graded trajectories of all seeds by their executed calls. Seconds are the
    training time of the stages in the lineage of a row's model; `training` has the costs of the
    reinforcement learning stages among them (evaluation/seed_table.py).
    """
    first = next(iter(reports.values()))
    rows = [
        _make_row(recipe, title, name, reports, curves or {})
        for title, name in get_seed_table_rows(recipe).items()
    ]
    return {
        "schema": SCHEMA_VERSION,
        "recipe": recipe.name,
        "seeds": list(reports),
        "device": first["device"],
        "seconds": sum(report["seconds"] for report in reports.values()),
        "rows": rows,
        "comparisons": list(comparisons),
        "simulated": summarise_simulated_rows(recipe, rows, curves or {}),
        "saved_calls": list(saved_calls),
        "config": dump_recipe(recipe),
        "versions": first["versions"],
    }


def _make_row(
    recipe: Recipe,
    title: str,
    name: str,
    reports: Mapping[int, Report],
    curves: Mapping[str, Sequence[MetricsRows]],
) -> dict[str, Any]:
    entries = [report["evals"][name] for report in reports.values()]
    kind = _classify_row(recipe, name, entries)
    stages = [] if kind in ("program", "teacher") else get_stage_ancestry(recipe, name)
    splits = entries[0].get("splits", {})
    return {
        "title": title,
        "name": name,
        "kind": kind,
        "stages": stages,
        "rl_steps": {
            kind: sum(
                recipe.stages[stage].steps_by_observation_mode.get(kind, 0) for stage in stages
            )
            for kind in ("simulated", "real")
        },
        **_aggregate_rates(entries),
        "splits": {
            split: _aggregate_rates([entry["splits"][split] for entry in entries])
            for split in splits
        },
        "known_no_call_rate": mean_or_none((e["known"] or {}).get("no_call_rate") for e in entries),
        "seconds": fmean(
            sum(stage["seconds"] for stage in report["stages"] if stage["name"] in stages)
            for report in reports.values()
        ),
        "training": compute_training_cost(stages, curves),
        "by_calls": _pool_by_calls(entries),
    }


def _aggregate_rates(entries: Sequence[Report]) -> dict[str, Any]:
    """Return the rates over seeds of the same questions, or of questions of the same kind."""
    effective = sum(entry["n_effective"] for entry in entries)
    return {
        "n": sum(entry["n"] for entry in entries),
        "em": _aggregate_accuracy([entry["em"] for entry in entries], effective),
        **{key: mean_or_none(entry.get(key) for entry in entries) for key in MEAN_KEYS},
        "calls_over_optimum": _compute_excess(entries),
    }


def _aggregate_accuracy(values: Sequence[float | None], n_effective: float) -> dict[str, Any]:
    """Return the exact match over the seeds with a gradable answer; None if there are none."""
    graded = [value for value in values if value is not None]
    if not graded:
        return dict.fromkeys(("mean", "ci95", "min", "max")) | {"values": values}
    mean = fmean(graded)
    return {
        "mean": mean,
        "ci95": interval_over_seeds(graded, wilson_interval(mean, n_effective)),
        "min": min(graded),
        "max": max(graded),
        "values": values,
    }


def _compute_excess(entries: Sequence[Report]) -> dict[str, Any] | None:
    """Return the share by which the calls of each seed exceed the optimum (negative if below it);
    None if a seed has no optimum, or an optimum of 0."""
    pairs = [(entry["calls_mean"], entry["calls_optimal_mean"]) for entry in entries]
    if any(not optimum for _, optimum in pairs):
        return None
    values = [calls / optimum - 1 for calls, optimum in pairs]
    return {"mean": fmean(values), "min": min(values), "max": max(values), "values": values}


def _pool_by_calls(entries: Sequence[Report]) -> list[dict[str, int]]:
    """Return the numbers of graded trajectories and of correct answers by executed calls, over all
    seeds. Numbers of calls without a graded trajectory are omitted."""
    pooled: dict[int, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        for calls, part in entry["by_calls"].items():
            pooled[int(calls)].update(_count_verdicts(part))
    return [
        {"calls": calls, "n": counts["n"], "right": counts["right"]}
        for calls, counts in sorted(pooled.items())
        if counts["n"]
    ]


def _count_verdicts(part: Report) -> dict[str, int]:
    """Return the numbers of graded and correct trajectories of a group. Reports of earlier versions
    have only the rate: their groups count as graded as a whole, or not at all."""
    if "correct" in part:
        return {"n": part["n"] - part["ungradable"], "right": part["correct"]}
    if part["em"] is None:
        return {}
    return {"n": part["n"], "right": round(part["em"] * part["n"])}


def _classify_row(recipe: Recipe, name: str, entries: Sequence[Report]) -> str:
    """Return the kind of a row. A program is a workflow in which no model generates text; a teacher
    is not a model of the run."""
    if name in recipe.evaluation.teachers:
        return "teacher"
    if name in map(get_display_name, recipe.evaluation.workflows):
        return "workflow" if any(entry["tokens_mean"] for entry in entries) else "program"
    if name == get_first_model(recipe):
        return "model"
    return recipe.stages[name].kind


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
