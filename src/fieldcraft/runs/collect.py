"""A run that collects demonstrations: a teacher answers the training questions of a recipe."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from fieldcraft.agents.chat import Chat, EngineChat
from fieldcraft.agents.prompted import Prompted
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.config.sections import Teacher as TeacherSettings
from fieldcraft.data.collect import Collection
from fieldcraft.data.steps_io import as_trajectory, read_demonstrations
from fieldcraft.data.teachers import ChatTeacher, Oracle, Teacher, Way
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.endpoints.openai import ChatEndpoint
from fieldcraft.evals.report import StageRecord, build_report, write_html, write_report
from fieldcraft.runs.inputs import AtlasInputs
from fieldcraft.runs.run import Run
from fieldcraft.terminal import StageProgress
from fieldcraft.train.model import load_model, load_tokenizer
from fieldcraft.types import Tool


def collect(recipe: Recipe, out: Path, console: Console) -> dict[str, Any]:
    """Collect what is left to collect, then write the report, which is also returned.

    However it ends, the files in the folder `collect` hold what there is by then. Raises UserError
    if the teacher cannot be reached, or fails too often.
    """
    run = Run(recipe, out, console)
    with run.folder.alone():
        began = time.perf_counter()
        run.folder.once("world", run.inputs.write_world)  # for whoever trains on what is collected
        settings = recipe.collect
        assert settings is not None
        tasks = run.inputs.train_tasks()[: settings.questions]
        collection = Collection(run.folder.path / "collect", tasks, settings, recipe.seed)
        teacher = make_teacher(run)
        try:
            asyncio.run(_ask(run, teacher, collection))
        finally:
            summary = collection.write(teacher)
        return _report(run, summary, time.perf_counter() - began)


def make_teacher(run: Run) -> Teacher:
    """The teacher of a recipe and, if it is no oracle, the search tool it uses."""
    recipe = run.recipe
    if recipe.teacher.model is None:
        assert isinstance(run.inputs, AtlasInputs), "parse_recipe sees to that"
        return Oracle(run.inputs.world, recipe.seed)
    if recipe.teacher.url is None:
        chat = _local(run, Path(recipe.teacher.model))
    else:
        chat = endpoint_of(recipe.teacher, cache=run.folder.path / "collect" / "replies.sqlite")
    tools: dict[Way, list[Tool]] = {Way.COT: [], Way.COA: [run.search]}
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


def _local(run: Run, folder: Path) -> Chat:
    model, tokenizer = load_model(folder, run.device).eval(), load_tokenizer(folder)
    run.use_threads(model)
    engine = LocalEngine(
        model, tokenizer, max_rows=run.recipe.max_rows, threads=run.threads.sampling
    )
    return EngineChat(engine, tokenizer)


async def _ask(run: Run, teacher: Teacher, collection: Collection) -> None:
    if isinstance(teacher, ChatTeacher) and isinstance(teacher.chat, ChatEndpoint):
        await teacher.chat.check()
    with StageProgress("collect", len(collection.jobs), run.console) as progress:

        def on_job(ended: int, kept: int) -> None:
            usage = collection.journal.usage
            note = f"kept {kept}/{collection.journal.tried}"
            if tokens := usage.prompt_tokens + usage.completion_tokens:
                note += f"  tokens {tokens:,}"
            if usage.cost:
                note += f"  cost {usage.cost:.2f}"
            progress.update(ended, note=note)

        await collection.run(teacher, run.recipe.teacher.concurrency, on_job)


def _report(run: Run, summary: dict[str, Any], seconds: float) -> dict[str, Any]:
    folder = run.folder.path
    report = build_report(
        recipe=run.recipe.recipe,
        seed=run.recipe.seed,
        device=str(run.device),
        stages=[StageRecord("collect", seconds)],
        evals={},
        comparisons=[],
        extra={
            "collected": summary,
            "config": dump_recipe(run.recipe),
            "versions": run.versions(),
        },
    )
    write_report(report, folder / "report.json")
    shown = read_demonstrations(folder / "collect" / "demonstrations.jsonl")
    samples = [as_trajectory(task, steps) for task, steps in shown]
    write_html(report, {}, {"collect": samples}, folder / "report.html")
    return report
