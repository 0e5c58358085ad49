"""Execution of a complete run. Finished phases are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldcraft.config.recipe import Recipe
from fieldcraft.records.events import EventBus, LogMessage
from fieldcraft.runs.build import make_verdict_reward
from fieldcraft.runs.closed_book import measure_closed_book
from fieldcraft.runs.context import RunContext, open_run_context
from fieldcraft.runs.evaluating import evaluate_model, evaluate_teachers, evaluate_workflows
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.examples import PAGE_EXAMPLES, ExampleSource
from fieldcraft.runs.knowledge import measure_knowledge
from fieldcraft.runs.run_report import write_run_report
from fieldcraft.runs.selecting import select_questions
from fieldcraft.runs.setup import EXPENSIVE_GRADERS, PlaceholderReward
from fieldcraft.runs.training import train_stage
from fieldcraft.terminal.examples import write_examples
from fieldcraft.train.memory import release_memory
from fieldcraft.types import UserError


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
        context.emit(LogMessage(f"partial report: {context.folder.report_html}"))
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
