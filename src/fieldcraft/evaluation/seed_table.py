"""Aggregate table over the runs of several seeds: `report.json` and `report.html` of a sweep.

OTC (arXiv 2504.14870) claims that fewer calls also make training faster. The table reports the
costs of the reinforcement learning of each of its models, regardless of that claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

from fieldcraft.config.names import get_display_name
from fieldcraft.config.plan import get_seed_table_rows
from fieldcraft.config.recipe import Recipe, dump_recipe, get_first_model, get_stage_ancestry
from fieldcraft.evaluation import charts
from fieldcraft.evaluation.achievement import describe_achievement
from fieldcraft.evaluation.comparison import compare_over_seeds
from fieldcraft.evaluation.intervals import interval_over_seeds, wilson_interval
from fieldcraft.evaluation.report import SCHEMA_VERSION, inline_assets, make_page_environment
from fieldcraft.evaluation.tables import has_prices
from fieldcraft.records.files import write_text
from fieldcraft.types import Trajectory

MIN_TRAJECTORIES = 20  # fewer trajectories mark a rate as uncertain
MAX_CHART_CALLS = 8  # in the charts by number of calls, as in AutoCoA's figure 3
# The colour of a row indicates the training of its model; rivals have separate colours.
KIND_COLOURS = {"model": 0, "program": 2, "teacher": 0, "workflow": 4, "supervised": 1, "rl": 3}
RIVAL_COLOURS = (3, 5, 6, 2, 7)
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
) -> dict[str, Any]:
    """Return the content of a sweep's `report.json`, schema 1, from the `report.json` of every
    seed, the result of `compare_rows`, and the metric rows of the reinforcement learning stages of
    every seed.

    Rates are defined as in a run's report; `splits` has the rates of each kind of questions.
    `by_calls` pools the trajectories of all seeds by their executed calls. Seconds are the training
    time of the stages in the lineage of a row's model; `training` has the costs of the
    reinforcement learning stages among them (evaluation/seed_table.py).
    """
    first = next(iter(reports.values()))
    return {
        "schema": SCHEMA_VERSION,
        "recipe": recipe.name,
        "seeds": list(reports),
        "device": first["device"],
        "seconds": sum(report["seconds"] for report in reports.values()),
        "rows": [
            _make_row(recipe, title, name, reports, curves or {})
            for title, name in get_seed_table_rows(recipe).items()
        ],
        "comparisons": list(comparisons),
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
        "known_no_call_rate": _mean((e["known"] or {}).get("no_call_rate") for e in entries),
        "seconds": fmean(
            sum(stage["seconds"] for stage in report["stages"] if stage["name"] in stages)
            for report in reports.values()
        ),
        "training": compute_training_cost(stages, curves),
        "by_calls": _pool_by_calls(entries),
    }


def _aggregate_rates(entries: Sequence[Report]) -> dict[str, Any]:
    """Return the rates over seeds of the same questions, or of questions of the same kind."""
    em = [entry["em"] for entry in entries]
    pooled = wilson_interval(fmean(em), sum(entry["n_effective"] for entry in entries))
    return {
        "n": sum(entry["n"] for entry in entries),
        "em": {
            "mean": fmean(em),
            "ci95": interval_over_seeds(em, pooled),
            "min": min(em),
            "max": max(em),
            "values": em,
        },
        **{key: _mean(entry.get(key) for entry in entries) for key in MEAN_KEYS},
        "calls_over_optimum": _compute_excess(entries),
    }


def _compute_excess(entries: Sequence[Report]) -> dict[str, Any] | None:
    """Return the share by which the calls of each seed exceed the optimum (negative if below it);
    None if a seed has no optimum, or an optimum of 0."""
    pairs = [(entry["calls_mean"], entry["calls_optimal_mean"]) for entry in entries]
    if any(not optimum for _, optimum in pairs):
        return None
    values = [calls / optimum - 1 for calls, optimum in pairs]
    return {"mean": fmean(values), "min": min(values), "max": max(values), "values": values}


def _mean(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _pool_by_calls(entries: Sequence[Report]) -> list[dict[str, int]]:
    """Return the numbers of trajectories and correct answers by executed calls, over all seeds."""
    parts = [(int(calls), part) for e in entries for calls, part in e["by_calls"].items()]
    return [
        {
            "calls": calls,
            "n": sum(part["n"] for k, part in parts if k == calls),
            "right": sum(round(part["em"] * part["n"]) for k, part in parts if k == calls),
        }
        for calls in sorted({calls for calls, _ in parts})
    ]


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


# -- presentation --------------------------------------------------------------------------------


def write_seeds_page(
    table: Report,
    links: Mapping[int, str],
    curves: Mapping[str, Sequence[MetricsRows]],
    titles: Mapping[str, str],
    path: Path,
) -> None:
    """Write `report.html`: one file without network access, with links to the seeds' reports.

    `curves` contains the metric rows of the reinforcement learning stages of every seed; `titles`
    describes the questions of every split.
    """
    environment = make_page_environment()
    compared = select_chart_rows(table["rows"])
    rivals = select_rival_rows(table["rows"])
    slots = {row["title"]: KIND_COLOURS[row["kind"]] for row in table["rows"]}
    slots |= {row["title"]: slot for row, slot in zip(rivals, cycle(RIVAL_COLOURS), strict=False)}
    rival_curves = {row["title"]: curves[row["name"]] for row in rivals}
    page = environment.get_template("seeds.html.j2").render(
        table=table,
        empty=(),
        achieved=describe_achievement(table),
        priced=has_prices(table["rows"]),
        links=links,
        slots=slots,
        rivals=list(rival_curves),
        learning=charts.draw_curves_over_seeds(rival_curves, slots) if rival_curves else None,
        compared=[row["title"] for row in compared],
        charts=[_draw_frontier(table["rows"], slots), *_draw_call_charts(compared, slots)],
        splits=list(table["rows"][0]["splits"]),
        split_names=titles,
        few=MIN_TRAJECTORIES,
        appendix={key: table[key] for key in ("config", "versions")},
        **inline_assets(environment, ["report.css"], ["dom.js", "charts.js"]),
    )
    write_text(path, [page])


def select_chart_rows(rows: Sequence[Report]) -> list[Report]:
    """Return the rows of the charts: the ReAct workflow, the last supervised model, and the last
    reinforcement learning model that started from it."""
    react = [row for row in rows if row["name"] == "workflow"]
    supervised = [row for row in rows if row["kind"] == "supervised"][-1:]
    ancestor = supervised[0]["name"] if supervised else None
    trained = [row for row in rows if row["kind"] == "rl" and ancestor in row["stages"]][-1:]
    return [*react, *supervised, *trained]


def select_rival_rows(rows: Sequence[Report]) -> list[Report]:
    """Return the rows whose learning curves share a chart: the largest set of models that differ
    only in their last stage, which is reinforcement learning on the same kind of observations."""
    sets: dict[tuple[str, ...], list[Report]] = {}
    for row in rows:
        if row["kind"] == "rl":
            steps = {kind: steps > 0 for kind, steps in row["rl_steps"].items()}
            sets.setdefault((*row["stages"][:-1], str(steps)), []).append(row)
    largest = max(sets.values(), key=len, default=[])
    return largest if len(largest) > 1 else []


def _draw_call_charts(rows: Sequence[Report], slots: Mapping[str, int]) -> list[charts.Chart]:
    """Return the two panels of AutoCoA's figure 3 (arXiv 2503.06580)."""
    shares = {row["title"]: compute_correct_shares(row["by_calls"]) for row in rows}
    rates = {row["title"]: compute_success_rates(row["by_calls"]) for row in rows}
    titles = ("Correct answers by number of calls", "Success rate by number of calls")
    notes = ("share of all correct answers", "share of the trajectories with that number")
    return [
        charts.draw_rates_by_calls(titles[0], notes[0], "share of correct answers", shares, slots),
        charts.draw_rates_by_calls(titles[1], notes[1], "success rate", rates, slots),
    ]


def _draw_frontier(rows: Sequence[Report], slots: Mapping[str, int]) -> charts.Chart:
    """Draw exact match over calls for every row."""
    points = {
        row["title"]: {
            "em": row["em"]["mean"],
            "em_ci95": row["em"]["ci95"] or [row["em"]["mean"]] * 2,
            "calls_mean": row["calls_mean"],
            "calls_optimal_mean": row["calls_optimal_mean"],
        }
        for row in rows
    }
    return charts.draw_accuracy_against_calls(points, [], slots)


def compute_correct_shares(parts: Sequence[Mapping[str, int]]) -> list[tuple[int, float, bool]]:
    """Return (calls, share of all correct answers with this number of calls, whether based on
    few)."""
    correct = max(1, sum(part["right"] for part in parts))
    return [
        (k, part["right"] / correct, is_sparse) for k, part, is_sparse in _select_charted(parts)
    ]


def compute_success_rates(parts: Sequence[Mapping[str, int]]) -> list[tuple[int, float, bool]]:
    """Return (calls, share of correct trajectories among those with this number of calls, whether
    based on few)."""
    return [
        (k, part["right"] / part["n"], is_sparse) for k, part, is_sparse in _select_charted(parts)
    ]


def _select_charted(
    parts: Sequence[Mapping[str, int]],
) -> Iterator[tuple[int, Mapping[str, int], bool]]:
    for part in parts:
        if part["calls"] <= MAX_CHART_CALLS:
            yield part["calls"], part, part["n"] < MIN_TRAJECTORIES
