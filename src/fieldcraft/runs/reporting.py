"""The report of a run, from what is in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fieldcraft.config.lineage import lineage
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.evals.pairwise import one_after_another
from fieldcraft.evals.report import StageRecord, build_report, write_html, write_report
from fieldcraft.records.files import read_json
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.runs.context import Context
from fieldcraft.types import Trajectory


def write_run_report(context: Context) -> dict[str, Any]:
    """Write `report.json` and `report.html`; returns the content of the first."""
    folder, recipe = context.folder, context.recipe
    names = folder.evaluations()
    found = {name: read_json(folder.evaluation(name).summary) for name in names}
    samples = {name: read_trajectories(folder.evaluation(name).trajectories) for name in names}
    records = {name: read_json(folder.stage(name).record) for name in recipe.stages}
    stages = [StageRecord(n, r["seconds"], r["metrics"]) for n, r in records.items()]
    stages.append(StageRecord("evaluation", sum(e["seconds"] for e in found.values())))
    report = build_report(
        recipe=recipe.recipe,
        seed=recipe.seed,
        device=str(context.device),
        stages=stages,
        evals={n: e["summary"] | {"seconds": e["seconds"]} for n, e in found.items()},
        comparisons=_changes(recipe, samples),
        extra={"config": dump_recipe(recipe), "versions": context.versions()},
    )
    write_report(report, folder.report_json)
    curves = {name: MetricsLog(folder.stage(name).metrics).rows() for name in recipe.stages}
    write_html(report, curves, samples, folder.report_html)
    return report


def _changes(recipe: Recipe, samples: Mapping[str, Sequence[Trajectory]]) -> list[dict[str, Any]]:
    """Every stage against the nearest evaluated model that it started from."""
    first = ["base"] if recipe.model else []
    found = []
    for name in (n for n in recipe.stages if n in samples):
        line = [n for n in (*first, *lineage(recipe, name)) if n in samples]
        pair = {n: samples[n] for n in line[-2:]}
        found += one_after_another(pair, recipe.evaluation.leading)
    return found
