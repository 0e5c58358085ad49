"""Report of a run, from the files in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fieldcraft.config.lineage import get_stage_ancestry
from fieldcraft.config.recipe import Recipe, dump_recipe, list_evaluations
from fieldcraft.evaluation.browsing import PageContext
from fieldcraft.evaluation.comparison import compare_consecutive
from fieldcraft.evaluation.report import StageSummary, build_report, write_report, write_report_page
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.training_rollouts import read_training_rollouts
from fieldcraft.runs.closed_book import summarise_closed_book
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.stage_files import StageFolder
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.types import Author, Trajectory, UserError


def write_run_report(context: RunContext, stopped: str | None = None) -> dict[str, Any]:
    """Write `report.json` and `report.html`; return the content of the former.

    `stopped` is the reason why the run ended early: the report then contains the results so far,
    including the curves of the current stage. Raises UserError for a finished run with a missing
    evaluation.
    """
    folder, recipe = context.folder, context.recipe
    names = folder.evaluations()
    if missing := [name for name in list_evaluations(recipe) if name not in names and not stopped]:
        raise UserError(
            f"{folder.evaluation(missing[0]).summary} was deleted while the run continued: run the"
            " same command again, which repeats the evaluation."
        )
    evaluations_by_name = {name: folder.evaluation(name).read() for name in names}
    samples = {name: trajectories for name, (trajectories, _) in evaluations_by_name.items()}
    seconds = {name: duration for name, (_, duration) in evaluations_by_name.items()}
    curves = {name: MetricsLog(folder.stage(name).metrics).read_rows() for name in recipe.stages}
    curves = {name: rows for name, rows in curves.items() if rows}
    training = {name: list(read_training_rollouts(folder.stage(name).rollouts)) for name in curves}
    stages = [_summarise_stage(folder.stage(name), name, rows) for name, rows in curves.items()]
    stages.append(StageSummary("evaluation", sum(seconds.values())))
    report = build_report(
        recipe=recipe.name,
        seed=recipe.seed,
        device=str(context.device),
        stages=stages,
        evals={
            n: summarise_evaluation(
                evaluated, recipe.evaluation.leading_split, recipe.evaluation.prices
            )
            | {"seconds": seconds[n]}
            for n, evaluated in samples.items()
        },
        comparisons=_compare_stages(recipe, samples),
        extra=({"stopped": stopped} if stopped else {})
        | ({"closed_book": summarise_closed_book(context)} if context.closed_book_tallies else {})
        | {"config": dump_recipe(recipe), "versions": context.collect_versions()},
    )
    write_report(report, folder.report_json)
    page_context = _make_page_context(context, names, list(curves))
    write_report_page(report, curves, samples, folder.report_html, page_context, training)
    return report


def _summarise_stage(folder: StageFolder, name: str, rows: Sequence[StepMetrics]) -> StageSummary:
    """Return the summary of a stage, finished or in progress, with the steps in its metrics."""
    if folder.is_done:
        record = folder.read_record()
        return StageSummary(name, record["seconds"], record["metrics"])
    return StageSummary(name, sum(row["seconds"] for row in rows), dict(rows[-1]))


def _make_page_context(
    context: RunContext, evaluations: Sequence[str], stages: Sequence[str]
) -> PageContext:
    """Return the page's information about tokens and the paths of the files next to it."""
    folder, recipe = context.folder, context.recipe
    # A run that was stopped early may have neither a model nor a trajectory to show.
    tokenizer = context.load_dialect(folder.model("start")).tokenizer if evaluations else None

    def make_link(path: Path) -> str:
        return quote(path.relative_to(folder.path).as_posix())

    return PageContext(
        decode_token=None if tokenizer is None else lambda i: tokenizer.decode([i]),
        trained_authors={
            name: frozenset(map(Author, stage.trained_authors))
            for name, stage in recipe.stages.items()
        },
        trajectories={
            name: make_link(folder.evaluation(name).trajectories) for name in evaluations
        },
        metrics={name: make_link(folder.stage(name).metrics) for name in stages},
        examples=make_link(folder.examples_page) if folder.examples_page.exists() else None,
    )


def _compare_stages(
    recipe: Recipe, samples: Mapping[str, Sequence[Trajectory]]
) -> list[dict[str, Any]]:
    """Compare every stage with the nearest evaluated model that it started from."""
    first = ["base"] if recipe.model else []
    found = []
    for name in (n for n in recipe.stages if n in samples):
        ancestors = [n for n in (*first, *get_stage_ancestry(recipe, name)) if n in samples]
        pair = {n: samples[n] for n in ancestors[-2:]}
        found += compare_consecutive(pair, recipe.evaluation.leading_split)
    return found
