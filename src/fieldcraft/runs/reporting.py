"""The report of a run, from what is in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fieldcraft.config.lineage import lineage
from fieldcraft.config.recipe import Recipe, dump_recipe, evaluations
from fieldcraft.evals.browsing import Source
from fieldcraft.evals.metrics import summarise
from fieldcraft.evals.pairwise import one_after_another
from fieldcraft.evals.report import StageRecord, build_report, write_html, write_report
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.rollouts import read_rollouts
from fieldcraft.runs.closed_book import closed_book_report
from fieldcraft.runs.context import Context
from fieldcraft.runs.stage_files import StageFolder
from fieldcraft.train.stages.base import Row
from fieldcraft.types import Author, Trajectory, UserError


def write_run_report(context: Context, stopped: str | None = None) -> dict[str, Any]:
    """Write `report.json` and `report.html`; returns the content of the first.

    `stopped` is why the run ended before its time: the report then has what there is by now, the
    curves of the stage under way included. Raises UserError for a run that is over and has lost an
    evaluation.
    """
    folder, recipe = context.folder, context.recipe
    names = folder.evaluations()
    if lost := [name for name in evaluations(recipe) if name not in names and not stopped]:
        raise UserError(
            f"{folder.evaluation(lost[0]).summary} has vanished while the run went on: run the same"
            " command again, which evaluates anew."
        )
    found = {name: folder.evaluation(name).read() for name in names}
    samples = {name: trajectories for name, (trajectories, _) in found.items()}
    seconds = {name: taken for name, (_, taken) in found.items()}
    curves = {name: MetricsLog(folder.stage(name).metrics).rows() for name in recipe.stages}
    curves = {name: rows for name, rows in curves.items() if rows}
    training = {name: list(read_rollouts(folder.stage(name).rollouts)) for name in curves}
    stages = [_record(folder.stage(name), name, rows) for name, rows in curves.items()]
    stages.append(StageRecord("evaluation", sum(seconds.values())))
    report = build_report(
        recipe=recipe.recipe,
        seed=recipe.seed,
        device=str(context.device),
        stages=stages,
        evals={
            n: summarise(done, recipe.evaluation.leading, recipe.evaluation.prices)
            | {"seconds": seconds[n]}
            for n, done in samples.items()
        },
        comparisons=_changes(recipe, samples),
        extra=({"stopped": stopped} if stopped else {})
        | ({"closed_book": closed_book_report(context)} if context.rates else {})
        | {"config": dump_recipe(recipe), "versions": context.versions()},
    )
    write_report(report, folder.report_json)
    origin = _source(context, names, list(curves))
    write_html(report, curves, samples, folder.report_html, origin, training)
    return report


def _record(folder: StageFolder, name: str, rows: Sequence[Row]) -> StageRecord:
    """Return a stage that is done, or one under way: it has the steps of its metrics so far."""
    if folder.done:
        record = folder.read_record()
        return StageRecord(name, record["seconds"], record["metrics"])
    return StageRecord(name, sum(row["seconds"] for row in rows), dict(rows[-1]))


def _source(context: Context, evaluations: Sequence[str], stages: Sequence[str]) -> Source:
    """Return the facts that the page tells of tokens, and the place of the files beside it."""
    folder, recipe = context.folder, context.recipe
    # A run that was stopped early may have neither a model nor a trajectory to show.
    tokenizer = context.dialect(folder.model("start")).tokenizer if evaluations else None

    def link(path: Path) -> str:
        return quote(path.relative_to(folder.path).as_posix())

    return Source(
        piece=None if tokenizer is None else lambda i: tokenizer.decode([i]),
        trained={
            name: frozenset(map(Author, stage.trained_authors))
            for name, stage in recipe.stages.items()
        },
        trajectories={name: link(folder.evaluation(name).trajectories) for name in evaluations},
        metrics={name: link(folder.stage(name).metrics) for name in stages},
        examples=link(folder.examples) if folder.examples.exists() else None,
    )


def _changes(recipe: Recipe, samples: Mapping[str, Sequence[Trajectory]]) -> list[dict[str, Any]]:
    """Return the comparison of every stage with the nearest evaluated model that it started
    from."""
    first = ["base"] if recipe.model else []
    found = []
    for name in (n for n in recipe.stages if n in samples):
        line = [n for n in (*first, *lineage(recipe, name)) if n in samples]
        pair = {n: samples[n] for n in line[-2:]}
        found += one_after_another(pair, recipe.evaluation.leading)
    return found
