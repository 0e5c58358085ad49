"""Selection of the questions of reinforcement learning, inside a run or as a separate run."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldcraft.config.collection import TEACHER, SelectConfig
from fieldcraft.config.recipe import Recipe, dump_recipe, list_toolless_datasets, uses_tools
from fieldcraft.config.stages import Contrastive, Sft
from fieldcraft.data.duplicates import normalise_text
from fieldcraft.data.filters import apply_filters
from fieldcraft.data.formats.convert import read_any_demonstrations
from fieldcraft.data.funnel import DataCard, pick_examples
from fieldcraft.data.grading import Grader
from fieldcraft.data.selection import (
    CLOSED_BOOK,
    SOLVER,
    SelectionResult,
    TallyJournal,
    drop_known,
    drop_solved,
    drop_trained,
    sample_answers,
)
from fieldcraft.data.steps_io import read_demonstrations
from fieldcraft.data.tasks import read_tasks, write_tasks
from fieldcraft.environments.loop import Policy, run_rollout
from fieldcraft.environments.monitors import EvaluationMonitor
from fieldcraft.evaluation.evaluate import make_verdict_rubric
from fieldcraft.evaluation.pages import find_page_writer
from fieldcraft.evaluation.report import StageSummary, build_report, write_report
from fieldcraft.records.events import EventBus, JobsCompleted, track_phase
from fieldcraft.runs.build import make_environment
from fieldcraft.runs.context import RunContext, open_run_context
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.filtering import DEMONSTRATIONS_FILE, make_byte_level_dialect, write_data_card
from fieldcraft.runs.knowledge import measure_knowledge
from fieldcraft.runs.sampling import Decoding, resolve_decoding
from fieldcraft.runs.teachers import make_prompted_agent, open_chat_model
from fieldcraft.types import AnyTool, Status, Task, UserError

CorrectnessCheck = Callable[[Task, str], Awaitable[bool | None]]
LAST_FILE = "card.json"  # last written file of a selection


async def select_questions(context: RunContext, models: Mapping[str, Path]) -> list[Task]:
    """Return the questions for a run's reinforcement learning stages; `models` are the folders of
    `start` and of the stages so far. Existing samples are reused.

    Raises UserError if no question remains, or a model does not respond.
    """
    folder, settings = context.folder.select_folder, context.recipe.select
    assert settings is not None
    if not (folder / LAST_FILE).exists():
        await _run_selection(context, models, settings, folder)
    return read_tasks(folder / "tasks.jsonl")


async def _run_selection(
    context: RunContext, models: Mapping[str, Path], settings: SelectConfig, folder: Path
) -> None:
    tallies = TallyJournal(folder / "samples.jsonl")
    candidates = context.data_source.train_tasks()[: settings.questions]
    results = [await _filter_questions(context, candidates, settings)]
    results.append(
        drop_trained(collect_trained_questions(context, models), results[-1].selected, settings)
    )
    if settings.closed_book_model is not None:
        is_correct = await _make_closed_book_check(
            context, models, settings.closed_book_model, settings
        )
        remaining = results[-1].selected
        await tally_samples(
            context,
            "select",
            tallies,
            CLOSED_BOOK,
            remaining,
            settings.closed_book_samples,
            is_correct,
        )
        results.append(drop_known(tallies.get_tallies(CLOSED_BOOK), remaining, settings))
    if settings.solver is not None:
        model, remaining = models[settings.solver], results[-1].selected
        count = len(remaining) * settings.solver_rollouts
        decoding = resolve_decoding(settings, model, context.emit, needs_variety=True)
        is_solved = make_rollout_check(
            context, f"select: {SOLVER}", model, context.tools, count, decoding
        )
        await tally_samples(
            context, "select", tallies, SOLVER, remaining, settings.solver_rollouts, is_solved
        )
        results.append(drop_solved(tallies.get_tallies(SOLVER), remaining, settings))
    _write_selection(context, SelectionResult(*_merge_results(results)), tallies, settings, folder)


async def _filter_questions(
    context: RunContext, tasks: Sequence[Task], settings: SelectConfig
) -> SelectionResult:
    """Return the questions that pass the filters of the recipe, which receive chains without
    steps."""
    recipe, demonstrations = context.recipe, [(task, ()) for task in tasks]
    args = (make_byte_level_dialect(recipe), Grader(context.verdict_reward), recipe.seed)
    result = await apply_filters(demonstrations, settings.filters, *args)
    dropped = [(demonstration.task, rule, reason) for demonstration, rule, reason in result.dropped]
    return SelectionResult(
        [demonstration.task for demonstration in result.accepted], dropped, result.stages
    )


def _merge_results(results: Sequence[SelectionResult]) -> tuple[Any, ...]:
    dropped = [item for result in results for item in result.dropped]
    return results[-1].selected, dropped, [stage for result in results for stage in result.stages]


async def tally_samples(
    context: RunContext,
    phase: str,
    tallies: TallyJournal,
    label: str,
    tasks: Sequence[Task],
    samples: int,
    is_correct: CorrectnessCheck,
) -> None:
    """Sample every question without a tally, in the phase of the run named `phase`."""
    event_name = f"{phase}: {label}"

    def on_task(done: int) -> None:
        found = tallies.get_tallies(label).values()
        correct, total = sum(t.num_correct for t in found), sum(t.num_graded for t in found)
        context.emit(JobsCompleted(event_name, done, f"right {correct}/{total}"))

    concurrency = context.recipe.evaluation.concurrency
    with track_phase(context.emit, event_name, len(tasks), "jobs"):
        await sample_answers(tallies, label, tasks, samples, concurrency, is_correct, on_task)


async def _make_closed_book_check(
    context: RunContext, models: Mapping[str, Path], name: str, settings: SelectConfig
) -> CorrectnessCheck:
    """Return the check of samples without tools, by a model of this run or the recipe's teacher."""
    if name != TEACHER:
        count = settings.questions * settings.closed_book_samples
        decoding = resolve_decoding(settings, models[name], context.emit, needs_variety=True)
        return make_rollout_check(
            context, f"select: {CLOSED_BOOK}", models[name], [], count, decoding
        )
    recipe = context.recipe
    chat = await open_chat_model(context, recipe.teacher, context.folder.select_folder)
    decoding = resolve_decoding(
        settings, Path(recipe.teacher.model or ""), context.emit, needs_variety=True
    )
    agent = make_prompted_agent(recipe, chat, [], decoding)
    grader = Grader(context.verdict_reward)

    async def is_correct(task: Task, key: str) -> bool | None:
        attempt = await agent.attempt(task, f"{recipe.seed}:{key}")
        if attempt.failed:
            raise UserError(
                f"the teacher did not answer ({attempt.detail.rstrip('.')}): run the same command"
                " again, which resumes here."
            )
        return await grader.grade(task, attempt.steps)

    return is_correct


def make_rollout_check(
    context: RunContext,
    name: str,
    model: Path,
    tools: Sequence[AnyTool],
    count: int,
    decoding: Decoding,
) -> CorrectnessCheck:
    """Return the check of rollouts of a model, `count` in total, graded by the verdict reward.
    `name` determines their seeds."""
    recipe, dialect = context.recipe, context.load_dialect(model)
    env = make_environment(recipe, dialect, tools)
    engine = context.make_engine(context.load_policy_model(model), dialect)
    seed = zlib.crc32(f"{recipe.seed}:{name}".encode())
    policy = Policy(
        engine=engine, temperature=decoding.temperature, truncation=decoding.truncation, seed=seed
    )
    rubric = make_verdict_rubric(context.judge, context.verdict_reward)
    monitor = EvaluationMonitor(name, count, recipe.evaluation.max_broken)

    async def is_correct(task: Task, key: str) -> bool | None:
        trajectory = await run_rollout(task, policy, env, key)
        monitor.add(trajectory)
        await rubric.score_async_rewards([trajectory])
        await rubric.score([trajectory])
        return False if trajectory.status is Status.ERROR else trajectory.is_correct

    return is_correct


def collect_trained_questions(context: RunContext, models: Mapping[str, Path]) -> set[str]:
    """Return the normalised questions of supervised training: of the stages so far that included
    tools, or without stages those of the recipe's demonstrations."""
    recipe, data_source = context.recipe, context.data_source
    found: list[Task] = []
    for name, stage in recipe.stages.items():
        if name not in models or getattr(stage, "dataset", None) in list_toolless_datasets(recipe):
            continue
        args = (context.load_dialect(models[name]), context.schemas)
        if isinstance(stage, Sft) and stage.filters:
            demonstrations = read_demonstrations(
                context.folder.stage(name).path / "data" / DEMONSTRATIONS_FILE
            )
            found += [task for task, _ in demonstrations]
        elif isinstance(stage, Sft):
            found += [
                t.task for t in data_source.trajectories(stage.dataset, stage.max_examples, *args)
            ]
        elif isinstance(stage, Contrastive):
            found += [
                t.task for t, _ in data_source.pairs(stage.dataset, stage.max_examples, *args)
            ]
    if not recipe.stages and (file := recipe.demonstrations) is not None:
        found += [task for task, _ in read_any_demonstrations(file, recipe.max_left_out)[0]]
    return {normalise_text(task.question) for task in found}


def _write_selection(
    context: RunContext,
    result: SelectionResult,
    tallies: TallyJournal,
    settings: SelectConfig,
    folder: Path,
) -> None:
    recipe = context.recipe
    if not result.selected:
        counts = ", ".join(
            f"{stage.before - stage.after} by {stage.name}" for stage in result.stages
        )
        raise UserError(
            f"no question is left to learn from ({counts}): raise select.max_closed_book_accuracy"
            " or select.questions, or set select.overlap=keep."
        )
    write_tasks(result.selected, folder / "tasks.jsonl")
    dropped = (
        replace(task, meta=task.meta | {"dropped_by": rule, "reason": reason})
        for task, rule, reason in result.dropped
    )
    write_tasks(dropped, folder / "dropped.jsonl")
    figures = {
        f"{tally.num_correct} of {tally.num_graded} right {preposition} tools": {
            "questions": float(count)
        }
        for label, preposition in ((CLOSED_BOOK, "without"), (SOLVER, "with"))
        for tally, count in sorted(Counter(tallies.get_tallies(label).values()).items())
    }
    card = DataCard(
        f"{recipe.name}: questions to learn from",
        "questions",
        recipe.seed,
        settings.model_dump(mode="json"),
        result.stages,
        figures,
        pick_examples(result.examples),
    )
    write_data_card(card, folder)


# -- separate runs -----------------------------------------------------------------------------


def select(recipe: Recipe, out: Path, events: EventBus) -> dict[str, Any]:
    """Select the remaining questions, write the report and return it. Raises UserError like
    `select_questions`."""
    return run_async(_run_select_recipe(recipe, out, events))


async def _run_select_recipe(recipe: Recipe, out: Path, events: EventBus) -> dict[str, Any]:
    started = time.perf_counter()
    async with open_run_context(recipe, out, events) as context:
        assert recipe.select is not None
        if uses_tools(recipe):
            await context.open_tools()
        else:
            context.write_data_files()
        if recipe.model is not None:
            await measure_knowledge(context, recipe.model)
        models = {"start": context.prepare_first_model()} if recipe.select.sampled_models else {}
        selected = await select_questions(context, models)
        report = build_report(
            recipe=recipe.name,
            seed=recipe.seed,
            device=str(context.device),
            stages=[StageSummary("select", time.perf_counter() - started)],
            evals={},
            comparisons=[],
            extra={
                "selected": len(selected),
                "config": dump_recipe(recipe),
                "versions": context.collect_versions(),
            },
        )
        write_report(report, context.folder.report_json)
        if write_page := find_page_writer("report"):
            write_page(report, {}, {}, context.folder.report_html)
    return report
