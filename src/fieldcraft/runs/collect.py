"""Collection of demonstrations: a teacher answers the training questions of a recipe."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.data.collect import DemonstrationCollection, describe_missing
from fieldcraft.data.grading import Grader
from fieldcraft.data.steps_io import make_untokenised_trajectory, read_demonstrations
from fieldcraft.data.teachers import AnswerMode, DemonstrationTeacher
from fieldcraft.evaluation.pages import find_page_writer
from fieldcraft.evaluation.report import StageSummary, build_report, write_report
from fieldcraft.records.events import EventBus, JobsCompleted, LogMessage, track_phase
from fieldcraft.records.files import write_json
from fieldcraft.runs.context import RunContext, open_run_context
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.filtering import (
    DEMONSTRATIONS_FILE,
    filter_demonstrations,
    make_byte_level_dialect,
    require_valid_filters,
    write_filtered,
)
from fieldcraft.runs.knowledge import measure_knowledge
from fieldcraft.runs.teachers import make_teacher


def collect(recipe: Recipe, out: Path, events: EventBus) -> dict[str, Any]:
    """Collect the remaining demonstrations, write the report and return it.

    The files in the folder `collect` always contain everything collected so far. Raises UserError
    if the teacher is unreachable or fails too often.
    """
    return run_async(_collect(recipe, out, events))


async def _collect(recipe: Recipe, out: Path, events: EventBus) -> dict[str, Any]:
    async with open_run_context(recipe, out, events) as context:
        return await _run_collection(context)


async def _run_collection(context: RunContext) -> dict[str, Any]:
    started = time.perf_counter()
    recipe, settings = context.recipe, context.recipe.collect
    assert settings is not None
    require_valid_filters(settings.filters)
    if recipe.model is not None:
        await measure_knowledge(context, recipe.model)
    context.write_data_files()  # for training on the collected data
    tasks = context.data_source.train_tasks()[: settings.questions]
    modes = tuple(AnswerMode) if recipe.teacher.team is None else (AnswerMode.COA,)
    collection = DemonstrationCollection(
        context.folder.collect_folder, tasks, settings, recipe.seed, modes
    )
    teacher = await make_teacher(context)
    try:
        await _ask_teacher(context, teacher, collection)
    finally:
        summary = collection.write(teacher)
    for sentence in describe_missing(summary["missed"], settings.target_counts):
        context.emit(LogMessage(sentence))
    if settings.filters:
        summary |= {"filters": _filter_collected(context)}
        write_json(context.folder.collect_folder / "summary.json", summary)
    return _write_collect_report(context, summary, time.perf_counter() - started)


async def _ask_teacher(
    context: RunContext, teacher: DemonstrationTeacher, collection: DemonstrationCollection
) -> None:
    def on_job(finished: int, accepted: int) -> None:
        usage = collection.journal.usage
        note = f"kept {accepted}/{collection.journal.num_attempts}"
        if tokens := usage.prompt_tokens + usage.completion_tokens:
            note += f"  tokens {tokens:,}"
        if usage.cost:
            note += f"  cost {usage.cost:.2f}"
        context.emit(JobsCompleted("collect", finished, note))

    with track_phase(context.emit, "collect", sum(1 for _ in collection.jobs), "jobs"):
        concurrency = context.recipe.teacher.concurrency
        await collection.run(teacher, Grader(context.verdict_reward), concurrency, on_job)


def _filter_collected(context: RunContext) -> dict[str, Any]:
    """Filter the collected demonstrations into a separate folder, and return the counts of each
    rule."""
    recipe, folder = context.recipe, context.folder
    assert recipe.collect is not None
    demonstrations = read_demonstrations(folder.collect_folder / DEMONSTRATIONS_FILE)
    filters, dialect = recipe.collect.filters, make_byte_level_dialect(recipe)
    result = filter_demonstrations(recipe, demonstrations, filters, dialect, context.verdict_reward)
    write_filtered(folder.filtered_folder, recipe.name, demonstrations, result, recipe)
    return {
        "collected": len(demonstrations),
        **{stage.name: stage.after for stage in result.stages},
    }


def _write_collect_report(
    context: RunContext, summary: dict[str, Any], seconds: float
) -> dict[str, Any]:
    recipe, folder = context.recipe, context.folder
    report = build_report(
        recipe=recipe.name,
        seed=recipe.seed,
        device=str(context.device),
        stages=[StageSummary("collect", seconds)],
        evals={},
        comparisons=[],
        extra={
            "collected": summary,
            "config": dump_recipe(recipe),
            "versions": context.collect_versions(),
        },
    )
    write_report(report, folder.report_json)
    if write_page := find_page_writer("report"):
        demonstrations = read_demonstrations(folder.collect_folder / DEMONSTRATIONS_FILE)
        samples = [make_untokenised_trajectory(task, steps) for task, steps in demonstrations]
        write_page(report, {}, {"collect": samples}, folder.report_html)
    return report
