"""A run that collects demonstrations: a teacher answers the training questions of a recipe."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.data.collect import Collection
from fieldcraft.data.grading import Grader
from fieldcraft.data.steps_io import as_trajectory, read_demonstrations
from fieldcraft.data.targets import told
from fieldcraft.data.teachers import Teacher, Way
from fieldcraft.evals.report import StageRecord, build_report, write_html, write_report
from fieldcraft.records.events import Events, JobsDone, Said, during
from fieldcraft.records.files import write_json
from fieldcraft.runs.context import Context, open_context
from fieldcraft.runs.filtering import (
    DEMONSTRATIONS,
    filter_shown,
    refuse_bad_filters,
    text_dialect,
    write_filtered,
)
from fieldcraft.runs.knowledge import measure_knowledge
from fieldcraft.runs.loop import run_async
from fieldcraft.runs.teachers import make_teacher


def collect(recipe: Recipe, out: Path, events: Events) -> dict[str, Any]:
    """Collect what is left to collect, then write the report, which is also returned.

    However it ends, the files in the folder `collect` hold what there is by then. Raises UserError
    if the teacher cannot be reached, or fails too often.
    """
    return run_async(_collect(recipe, out, events))


async def _collect(recipe: Recipe, out: Path, events: Events) -> dict[str, Any]:
    async with open_context(recipe, out, events) as context:
        return await _attempts(context)


async def _attempts(context: Context) -> dict[str, Any]:
    began = time.perf_counter()
    recipe, settings = context.recipe, context.recipe.collect
    assert settings is not None
    refuse_bad_filters(settings.filters)
    if recipe.model is not None:
        await measure_knowledge(context, recipe.model)
    context.write_world()  # for whoever trains on what is collected
    tasks = context.inputs.train_tasks()[: settings.questions]
    ways = tuple(Way) if recipe.teacher.team is None else (Way.COA,)
    collection = Collection(context.folder.collected, tasks, settings, recipe.seed, ways)
    teacher = await make_teacher(context)
    try:
        await _ask(context, teacher, collection)
    finally:
        summary = collection.write(teacher)
    for sentence in told(summary["missed"], settings.targets):
        context.emit(Said(sentence))
    if settings.filters:
        summary |= {"filters": _filter(context)}
        write_json(context.folder.collected / "summary.json", summary)
    return _report(context, summary, time.perf_counter() - began)


async def _ask(context: Context, teacher: Teacher, collection: Collection) -> None:
    def on_job(ended: int, kept: int) -> None:
        usage = collection.journal.usage
        note = f"kept {kept}/{collection.journal.tried}"
        if tokens := usage.prompt_tokens + usage.completion_tokens:
            note += f"  tokens {tokens:,}"
        if usage.cost:
            note += f"  cost {usage.cost:.2f}"
        context.emit(JobsDone("collect", ended, note))

    with during(context.emit, "collect", sum(1 for _ in collection.jobs), "jobs"):
        concurrency = context.recipe.teacher.concurrency
        await collection.run(teacher, Grader(context.correct), concurrency, on_job)


def _filter(context: Context) -> dict[str, Any]:
    """Filter what is kept into a folder of its own, and say how many each rule left."""
    recipe, folder = context.recipe, context.folder
    assert recipe.collect is not None
    shown = read_demonstrations(folder.collected / DEMONSTRATIONS)
    filters, dialect = recipe.collect.filters, text_dialect(recipe)
    found = filter_shown(recipe, shown, filters, dialect, context.correct)
    write_filtered(folder.filtered, recipe.recipe, shown, found, recipe)
    return {"collected": len(shown), **{cut.name: cut.after for cut in found.cuts}}


def _report(context: Context, summary: dict[str, Any], seconds: float) -> dict[str, Any]:
    recipe, folder = context.recipe, context.folder
    report = build_report(
        recipe=recipe.recipe,
        seed=recipe.seed,
        device=str(context.device),
        stages=[StageRecord("collect", seconds)],
        evals={},
        comparisons=[],
        extra={
            "collected": summary,
            "config": dump_recipe(recipe),
            "versions": context.versions(),
        },
    )
    write_report(report, folder.report_json)
    shown = read_demonstrations(folder.collected / DEMONSTRATIONS)
    samples = [as_trajectory(task, steps) for task, steps in shown]
    write_html(report, {}, {"collect": samples}, folder.report_html)
    return report
