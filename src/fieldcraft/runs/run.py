"""Execution of a complete run, and its report from the files in its folder.

Finished phases are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fieldcraft.config.recipe import Recipe, dump_recipe, get_stage_ancestry, list_evaluations
from fieldcraft.evaluation.comparison import compare_consecutive
from fieldcraft.evaluation.pages import PageContext, find_page_writer
from fieldcraft.evaluation.report import StageSummary, build_report, write_report
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.records.events import EventBus, LogMessage
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.training_rollouts import read_training_rollouts
from fieldcraft.runs.build import make_verdict_reward
from fieldcraft.runs.closed_book import measure_closed_book, summarise_closed_book
from fieldcraft.runs.context import RunContext, open_run_context
from fieldcraft.runs.evaluating import evaluate_model, evaluate_teachers, evaluate_workflows
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.examples import PAGE_EXAMPLES, ExampleSource
from fieldcraft.runs.knowledge import measure_knowledge
from fieldcraft.runs.selecting import select_questions
from fieldcraft.runs.setup import EXPENSIVE_GRADERS, PlaceholderReward
from fieldcraft.runs.stage_files import StageFolder
from fieldcraft.runs.training import train_stage
from fieldcraft.terminal.examples import write_examples
from fieldcraft.train.memory import release_memory
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.types import Author, Trajectory, UserError


def run_recipe(recipe: Recipe, out: Path, events: EventBus) -> dict[str, Any]:
    """Execute the remaining work of a run in the folder `out` and return its report.

    One event loop serves the whole run. Raises UserError for errors that the user can correct.
    """
    return run_async(_run(recipe, out, events))


async def _run(recipe: Recipe, out: Path, events: EventBus) -> dict[str, Any]:
    async with open_run_context(recipe, out, events) as context:
        return await _run_stages(context)


async def _run_stages(context: RunContext) -> dict[str, Any]:
    """Run the stages and evaluations in the order of the recipe, then return the report. If an
    error stops the run, a partial report is written."""
    context.folder.delete_report()
    model = context.prepare_first_model()
    await measure_knowledge(context, model)
    await context.open_tools()
    try:
        await _train_and_evaluate(context, model)
    except UserError as error:
        write_run_report(context, stopped=str(error))
        context.emit(LogMessage(f"partial report: {context.folder.report}"))
        raise
    return write_run_report(context)


def _write_example_page(context: RunContext, model: Path) -> None:
    """Write a page with a few questions and demonstrations, unless it exists. Raises UserError for
    an unknown data set, before training."""
    recipe, path = context.recipe, context.folder.examples_page
    if not path.exists():
        dialect = None if recipe.environment.is_external else context.load_dialect(model)
        verdict_reward = make_verdict_reward(
            recipe, *(PlaceholderReward(name, None) for name in EXPENSIVE_GRADERS)
        )
        source = ExampleSource(
            recipe, context.data_source, verdict_reward, context.schemas, dialect
        )
        write_examples(source.take(PAGE_EXAMPLES), path)


async def _train_and_evaluate(context: RunContext, model: Path) -> None:
    recipe = context.recipe
    models = {"start": model}
    _write_example_page(context, model)
    await measure_closed_book(context, models)
    if recipe.model is not None:
        await evaluate_model(context, "base", model)
        await evaluate_workflows(context, model)
        await evaluate_teachers(context, model)
    for name, stage in recipe.stages.items():
        if recipe.select is not None and stage.kind == "rl" and context.selected_tasks is None:
            context.selected_tasks = await select_questions(context, models)
        start = models[stage.start_from] if stage.start_from else model
        model = models[name] = await train_stage(context, name, stage, start)
        await measure_closed_book(context, models)
        if stage.evaluate:
            await evaluate_model(context, name, model)
        if len(models) == 2 and recipe.model is None:
            await evaluate_workflows(context, model)
            await evaluate_teachers(context, model)
        release_memory()


# -- report ------------------------------------------------------------------------------------


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
    if write_page := find_page_writer("report"):
        page_context = _make_page_context(context, names, list(curves))
        write_page(report, curves, samples, folder.report_html, page_context, training)
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
