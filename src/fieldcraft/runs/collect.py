"""A run that collects demonstrations: a teacher answers the training questions of a recipe."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fieldcraft.agents.chat import Chat, EngineChat
from fieldcraft.agents.prompted import Prompted
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.config.sections import Teacher as TeacherSettings
from fieldcraft.data.collect import Collection
from fieldcraft.data.steps_io import as_trajectory, read_demonstrations
from fieldcraft.data.teachers import ChatTeacher, Oracle, Teacher, Way
from fieldcraft.endpoints.openai import ChatEndpoint
from fieldcraft.evals.report import StageRecord, build_report, write_html, write_report
from fieldcraft.records.events import Events, JobsDone, during
from fieldcraft.runs.build import make_engine
from fieldcraft.runs.context import Context, open_context
from fieldcraft.runs.loop import run_async
from fieldcraft.train.model import load_model, load_tokenizer
from fieldcraft.types import AnyTool


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
    context.write_world()  # for whoever trains on what is collected
    tasks = context.inputs.train_tasks()[: settings.questions]
    collection = Collection(context.folder.collected, tasks, settings, recipe.seed)
    teacher = await make_teacher(context)
    try:
        await _ask(context, teacher, collection)
    finally:
        summary = collection.write(teacher)
    return _report(context, summary, time.perf_counter() - began)


async def make_teacher(context: Context) -> Teacher:
    """The teacher of a recipe and, if it is no oracle, the tools it uses."""
    recipe = context.recipe
    if recipe.teacher.model is None:
        return Oracle(context.inputs.oracle, recipe.seed)
    await context.open_tools()
    if recipe.teacher.url is None:
        chat = _local(context, Path(recipe.teacher.model))
    else:
        chat = endpoint_of(recipe.teacher, cache=context.folder.collected / "replies.sqlite")
    tools: dict[Way, list[AnyTool]] = {Way.COT: [], Way.COA: list(context.tools)}
    return ChatTeacher(
        chat,
        {
            way: Prompted(
                chat=chat,
                tools=used,
                max_calls=recipe.budget.max_calls,
                turn_tokens=recipe.budget.turn_tokens,
                temperature=recipe.teacher.temperature,
                call_seconds=recipe.budget.call_seconds,
            )
            for way, used in tools.items()
        },
    )


def endpoint_of(settings: TeacherSettings, cache: Path | None) -> ChatEndpoint:
    """The endpoint that `teacher.url` and `teacher.model` name. A cache keeps its replies, so that
    an attempt that was cut short pays only for what it had not asked yet."""
    assert settings.url is not None
    assert settings.model is not None
    return ChatEndpoint(
        settings.url,
        settings.model,
        api_key_env=settings.api_key_env,
        concurrency=settings.concurrency,
        timeout_seconds=settings.timeout_seconds,
        retries=settings.retries,
        prices=settings.prices,
        cache=cache,
    )


def _local(context: Context, folder: Path) -> Chat:
    model, tokenizer = load_model(folder, context.device).eval(), load_tokenizer(folder)
    context.use_threads(model)
    engine = make_engine(context.recipe, model, tokenizer, context.threads.sampling)
    return EngineChat(engine, tokenizer)


async def _ask(context: Context, teacher: Teacher, collection: Collection) -> None:
    if isinstance(teacher, ChatTeacher) and isinstance(teacher.chat, ChatEndpoint):
        await teacher.chat.check()

    def on_job(ended: int, kept: int) -> None:
        usage = collection.journal.usage
        note = f"kept {kept}/{collection.journal.tried}"
        if tokens := usage.prompt_tokens + usage.completion_tokens:
            note += f"  tokens {tokens:,}"
        if usage.cost:
            note += f"  cost {usage.cost:.2f}"
        context.emit(JobsDone("collect", ended, note))

    with during(context.emit, "collect", len(collection.jobs), "jobs"):
        await collection.run(teacher, context.recipe.teacher.concurrency, on_job)


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
    shown = read_demonstrations(folder.collected / "demonstrations.jsonl")
    samples = [as_trajectory(task, steps) for task, steps in shown]
    write_html(report, {}, {"collect": samples}, folder.report_html)
    return report
