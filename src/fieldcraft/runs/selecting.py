"""Selection of the questions of reinforcement learning: inside a run, or as a run of its own."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldcraft.config.collection import TEACHER, Select
from fieldcraft.config.recipe import Recipe, acts, dump_recipe, toolless
from fieldcraft.config.stages import Pairs, Sft
from fieldcraft.data.duplicates import normal_form
from fieldcraft.data.filters import apply_filters
from fieldcraft.data.formats.convert import read_shown
from fieldcraft.data.funnel import Card, few
from fieldcraft.data.grading import Grader
from fieldcraft.data.selection import (
    SOLVER,
    TOOLLESS,
    Selected,
    Tallies,
    not_known,
    not_solved,
    sample,
    without,
)
from fieldcraft.data.sources import read_tasks, write_tasks
from fieldcraft.data.steps_io import read_demonstrations
from fieldcraft.evals.cards import write_card
from fieldcraft.evals.report import StageRecord, build_report, write_html, write_report
from fieldcraft.evals.run import answer_rubric
from fieldcraft.records.events import Events, JobsDone, during
from fieldcraft.rollout.health import EvaluationWatch
from fieldcraft.rollout.loop import Policy, rollout
from fieldcraft.runs.build import make_environment
from fieldcraft.runs.context import Context, open_context
from fieldcraft.runs.filtering import DEMONSTRATIONS, text_dialect
from fieldcraft.runs.knowledge import measure_knowledge
from fieldcraft.runs.loop import run_async
from fieldcraft.runs.sampling import Decoding, resolve_sampling
from fieldcraft.runs.teachers import make_chat, make_prompted
from fieldcraft.types import AnyTool, Status, Task, UserError

IsRight = Callable[[Task, str], Awaitable[bool | None]]
LAST = "card.html"  # of the files of a selection that is complete


async def select_questions(context: Context, models: Mapping[str, Path]) -> list[Task]:
    """Return the questions that a run's stages of reinforcement learning draw from; `models` are
    the folders of `start` and of the stages so far. Samples that were taken before are not taken
    again.

    Raises UserError where no question is left, or a model does not answer.
    """
    folder, settings = context.folder.selected, context.recipe.select
    assert settings is not None
    if not (folder / LAST).exists():
        await _select(context, models, settings, folder)
    return read_tasks(folder / "tasks.jsonl")


async def _select(
    context: Context, models: Mapping[str, Path], settings: Select, folder: Path
) -> None:
    tallies = Tallies(folder / "samples.jsonl")
    candidates = context.inputs.train_tasks()[: settings.questions]
    parts = [await _filtered(context, candidates, settings)]
    parts.append(without(trained_questions(context, models), parts[-1].kept, settings))
    if settings.toolless is not None:
        is_right = await _toolless(context, models, settings.toolless, settings)
        left = parts[-1].kept
        await tally(context, "select", tallies, TOOLLESS, left, settings.samples, is_right)
        parts.append(not_known(tallies.of(TOOLLESS), left, settings))
    if settings.solver is not None:
        model, left = models[settings.solver], parts[-1].kept
        count = len(left) * settings.rollouts
        how = resolve_sampling(settings, model, context.emit, several=True)
        solves = rolled_out(context, f"select: {SOLVER}", model, context.tools, count, how)
        await tally(context, "select", tallies, SOLVER, left, settings.rollouts, solves)
        parts.append(not_solved(tallies.of(SOLVER), left, settings))
    _write(context, Selected(*_joined(parts)), tallies, settings, folder)


async def _filtered(context: Context, tasks: Sequence[Task], settings: Select) -> Selected:
    """Return the questions that pass the filters of the recipe, which see chains without steps."""
    recipe, chains = context.recipe, [(task, ()) for task in tasks]
    args = (text_dialect(recipe), Grader(context.correct), recipe.seed)
    found = await apply_filters(chains, settings.filters, *args)
    dropped = [(chain.task, rule, reason) for chain, rule, reason in found.dropped]
    return Selected([chain.task for chain in found.kept], dropped, found.cuts)


def _joined(parts: Sequence[Selected]) -> tuple[Any, ...]:
    dropped = [left for part in parts for left in part.dropped]
    return parts[-1].kept, dropped, [cut for part in parts for cut in part.cuts]


async def tally(
    context: Context,
    work: str,
    tallies: Tallies,
    who: str,
    tasks: Sequence[Task],
    samples: int,
    is_right: IsRight,
) -> None:
    """Sample every question that has no tally yet, as the part of a run that is called `work`."""
    part = f"{work}: {who}"

    def on_task(done: int) -> None:
        found = tallies.of(who).values()
        right, of = sum(t.right for t in found), sum(t.of for t in found)
        context.emit(JobsDone(part, done, f"right {right}/{of}"))

    concurrency = context.recipe.evaluation.concurrency
    with during(context.emit, part, len(tasks), "jobs"):
        await sample(tallies, who, tasks, samples, concurrency, is_right, on_task)


async def _toolless(
    context: Context, models: Mapping[str, Path], name: str, settings: Select
) -> IsRight:
    """Return the check of samples without tools: of a model of this run, or of the recipe's
    teacher."""
    if name != TEACHER:
        count = settings.questions * settings.samples
        how = resolve_sampling(settings, models[name], context.emit, several=True)
        return rolled_out(context, f"select: {TOOLLESS}", models[name], [], count, how)
    recipe = context.recipe
    chat = await make_chat(context, recipe.teacher, context.folder.selected)
    how = resolve_sampling(settings, Path(recipe.teacher.model or ""), context.emit, several=True)
    prompted = make_prompted(recipe, chat, [], how)
    grader = Grader(context.correct)

    async def is_right(task: Task, key: str) -> bool | None:
        attempt = await prompted.attempt(task, f"{recipe.seed}:{key}")
        if attempt.failed:
            raise UserError(
                f"the teacher did not answer ({attempt.detail.rstrip('.')}): run the same command"
                " again, which resumes here."
            )
        return await grader.right(task, attempt.steps)

    return is_right


def rolled_out(
    context: Context,
    part: str,
    model: Path,
    tools: Sequence[AnyTool],
    count: int,
    how: Decoding,
) -> IsRight:
    """Return the check of rollouts of a model, `count` in all, graded by the reward that tells
    which answers are right. `part` is their name, which their seeds follow from."""
    recipe, dialect = context.recipe, context.dialect(model)
    env = make_environment(recipe, dialect, tools)
    engine = context.engine(context.policy(model), dialect)
    seed = zlib.crc32(f"{recipe.seed}:{part}".encode())
    policy = Policy(
        engine=engine, temperature=how.temperature, truncation=how.truncation, seed=seed
    )
    rubric = answer_rubric(context.judge, context.correct)
    watch = EvaluationWatch(part, count, recipe.evaluation.max_broken)

    async def is_right(task: Task, key: str) -> bool | None:
        trajectory = await rollout(task, policy, env, key)
        watch.add(trajectory)
        await rubric.prepare([trajectory])
        await rubric.score([trajectory])
        return False if trajectory.status is Status.ERROR else trajectory.right

    return is_right


def trained_questions(context: Context, models: Mapping[str, Path]) -> set[str]:
    """Return the questions of supervised training, in their normal form: those of the stages so far
    that showed tools, and without any stage those of the recipe's demonstrations."""
    recipe, inputs = context.recipe, context.inputs
    found: list[Task] = []
    for name, stage in recipe.stages.items():
        if name not in models or getattr(stage, "data", None) in toolless(recipe):
            continue
        args = (context.dialect(models[name]), context.schemas)
        if isinstance(stage, Sft) and stage.filters:
            shown = read_demonstrations(context.folder.stage(name).path / "data" / DEMONSTRATIONS)
            found += [task for task, _ in shown]
        elif isinstance(stage, Sft):
            found += [t.task for t in inputs.trajectories(stage.data, stage.examples, *args)]
        elif isinstance(stage, Pairs):
            found += [t.task for t, _ in inputs.pairs(stage.data, stage.examples, *args)]
    if not recipe.stages and (file := recipe.demonstrations) is not None:
        found += [task for task, _ in read_shown(file, recipe.max_left_out)[0]]
    return {normal_form(task.question) for task in found}


def _write(
    context: Context, found: Selected, tallies: Tallies, settings: Select, folder: Path
) -> None:
    recipe = context.recipe
    if not found.kept:
        counts = ", ".join(f"{cut.before - cut.after} by {cut.name}" for cut in found.cuts)
        raise UserError(
            f"no question is left to learn from ({counts}): raise select.most or select.questions,"
            " or set select.overlap=keep."
        )
    write_tasks(found.kept, folder / "tasks.jsonl")
    left = (
        replace(task, meta=task.meta | {"dropped_by": rule, "reason": reason})
        for task, rule, reason in found.dropped
    )
    write_tasks(left, folder / "dropped.jsonl")
    figures = {
        f"{tally.right} of {tally.of} right {how} tools": {"questions": float(count)}
        for who, how in ((TOOLLESS, "without"), (SOLVER, "with"))
        for tally, count in sorted(Counter(tallies.of(who).values()).items())
    }
    card = Card(
        f"{recipe.recipe}: questions to learn from",
        "questions",
        recipe.seed,
        settings.model_dump(mode="json"),
        found.cuts,
        figures,
        few(found.examples),
    )
    write_card(card, folder)


# -- a run of its own --------------------------------------------------------------------------


def select(recipe: Recipe, out: Path, events: Events) -> dict[str, Any]:
    """Select what is left to select, then write the report, which is also returned. Raises
    UserError as `select_questions` does."""
    return run_async(_alone(recipe, out, events))


async def _alone(recipe: Recipe, out: Path, events: Events) -> dict[str, Any]:
    began = time.perf_counter()
    async with open_context(recipe, out, events) as context:
        assert recipe.select is not None
        if acts(recipe):
            await context.open_tools()
        else:
            context.write_world()
        if recipe.model is not None:
            await measure_knowledge(context, recipe.model)
        models = {"start": context.first_model()} if recipe.select.reads else {}
        kept = await select_questions(context, models)
        report = build_report(
            recipe=recipe.recipe,
            seed=recipe.seed,
            device=str(context.device),
            stages=[StageRecord("select", time.perf_counter() - began)],
            evals={},
            comparisons=[],
            extra={
                "selected": len(kept),
                "config": dump_recipe(recipe),
                "versions": context.versions(),
            },
        )
        write_report(report, context.folder.report_json)
        write_html(report, {}, {}, context.folder.report_html)
    return report
