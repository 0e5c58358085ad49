"""Selection of questions for reinforcement learning: neither known without tools nor always solved.

AFM (arXiv 2508.13167) samples N = 32 answers to a question without tools and selects questions with
r_q = (1/N) sum EM(a_i, gold) <= 0.3. For code it drops questions that the fine-tuned model solves
8 of 8 times. Questions of supervised training are removed for the web, and stay for code. Here the
verdict reward of the run replaces EM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fieldcraft.config.collection import TEACHER, SelectConfig
from fieldcraft.config.plan import Step, StepKind, list_stages_before, makes_only_data
from fieldcraft.config.recipe import list_toolless_datasets
from fieldcraft.config.stages import Contrastive, Sft
from fieldcraft.data.decontamination import normalise_text
from fieldcraft.data.file_formats import read_any_demonstrations
from fieldcraft.data.grading import Grader
from fieldcraft.data.sample_tallies import SampleTally, TallyJournal, add_closed_book_rates
from fieldcraft.data.steps_io import read_demonstrations
from fieldcraft.data.tasks import read_tasks, write_tasks
from fieldcraft.extensions.curation.filtering import make_byte_level_dialect, write_data_card
from fieldcraft.extensions.curation.filters import (
    CardExample,
    DataCard,
    FilterStage,
    apply_filters,
    pick_examples,
)
from fieldcraft.extensions.curation.teachers import make_prompted_agent, open_chat_model
from fieldcraft.runs.closed_book import CorrectnessCheck, make_rollout_check, tally_samples
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.sampling import resolve_decoding
from fieldcraft.runs.stage_files import DEMONSTRATIONS_FILE
from fieldcraft.types import Task, UserError

CLOSED_BOOK, SOLVER = "toolless", "solver"
OVERLAP_REASON = "asked in supervised training"
KNOWN_REASON = "right too often without tools"
SOLVED_REASON = "always right with tools"
LAST_FILE = "card.json"  # last written file of a selection


async def select_questions(context: RunContext, step: Step) -> None:
    """Select the questions for a run's reinforcement learning stages. Existing samples are reused.

    Raises UserError if no question remains, or a model does not respond.
    """
    folder, settings = context.folder.select_folder, context.recipe.select
    assert settings is not None
    if not (folder / LAST_FILE).exists():
        await _run_selection(context, settings, folder)
    context.selected_tasks = read_tasks(folder / "tasks.jsonl")
    if makes_only_data(context.recipe):
        context.report_figures["selected"] = len(context.selected_tasks)


async def _run_selection(context: RunContext, settings: SelectConfig, folder: Path) -> None:
    tallies = TallyJournal(folder / "samples.jsonl")
    candidates = context.data_source.train_tasks()[: settings.questions]
    results = [await _filter_questions(context, candidates, settings)]
    trained = collect_trained_questions(context)
    results.append(drop_trained(trained, results[-1].selected, settings))
    if settings.closed_book_model is not None:
        is_correct = await _make_closed_book_check(context, settings.closed_book_model, settings)
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
        model, remaining = context.folder.model(settings.solver), results[-1].selected
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


async def _make_closed_book_check(
    context: RunContext, name: str, settings: SelectConfig
) -> CorrectnessCheck:
    """Return the check of samples without tools, by a model of this run or the recipe's teacher."""
    if name != TEACHER:
        model, count = context.folder.model(name), settings.questions * settings.closed_book_samples
        decoding = resolve_decoding(settings, model, context.emit, needs_variety=True)
        return make_rollout_check(context, f"select: {CLOSED_BOOK}", model, [], count, decoding)
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


def collect_trained_questions(context: RunContext) -> set[str]:
    """Return the normalised questions of supervised training: of the earlier stages that included
    tools, or without stages those of the recipe's demonstrations."""
    recipe, data_source = context.recipe, context.data_source
    found: list[Task] = []
    for name in list_stages_before(recipe, {StepKind.SELECT}):
        stage = recipe.stages[name]
        if getattr(stage, "dataset", None) in list_toolless_datasets(recipe):
            continue
        encoder = context.load_encoder(context.folder.model(name))
        if isinstance(stage, Sft) and stage.filters:
            demonstrations = read_demonstrations(
                context.folder.stage(name).path / "data" / DEMONSTRATIONS_FILE
            )
            found += [task for task, _ in demonstrations]
        elif isinstance(stage, Sft):
            found += [
                t.task for t in data_source.encoded(stage.dataset, stage.max_examples, encoder)
            ]
        elif isinstance(stage, Contrastive):
            found += [
                t.task for t, _ in data_source.pairs(stage.dataset, stage.max_examples, encoder)
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


# -- rules -------------------------------------------------------------------------------------


class SelectionResult(NamedTuple):
    """Selected questions, dropped questions with the reason, and the counts."""

    selected: list[Task]
    dropped: list[tuple[Task, str, str]]  # question, rule, reason
    stages: list[FilterStage]

    @property
    def examples(self) -> list[CardExample]:
        selected = [CardExample("", "", task.question, task.answers) for task in self.selected]
        rejected = [
            CardExample(rule, reason, t.question, t.answers) for t, rule, reason in self.dropped
        ]
        return [*selected, *rejected]


def drop_trained(
    trained: Set[str], tasks: Sequence[Task], settings: SelectConfig
) -> SelectionResult:
    """Apply the first rule: drop questions of supervised training, unless `overlap` is to be
    kept. `trained` holds these questions in normalised form."""
    drops_overlap = settings.overlap == "drop"
    reasons = [
        OVERLAP_REASON if drops_overlap and normalise_text(t.question) in trained else ""
        for t in tasks
    ]
    return _apply_reasons("overlap", {"overlap": settings.overlap}, tasks, reasons)


def drop_known(
    tallies: Mapping[str, SampleTally], tasks: Sequence[Task], settings: SelectConfig
) -> SelectionResult:
    """Apply the second rule: select questions with a known r_q of at most
    `max_closed_book_accuracy`, and store it in the metadata as `closed_book`."""
    tasks_with_rates = add_closed_book_rates(tasks, tallies)
    max_rate = settings.max_closed_book_accuracy
    reasons = [tallies[task.id].rejection_reason(max_rate, KNOWN_REASON) for task in tasks]
    return _apply_reasons(
        CLOSED_BOOK,
        {
            "closed_book_samples": settings.closed_book_samples,
            "max_closed_book_accuracy": max_rate,
        },
        tasks_with_rates,
        reasons,
    )


def drop_solved(
    tallies: Mapping[str, SampleTally], tasks: Sequence[Task], settings: SelectConfig
) -> SelectionResult:
    """Apply the third rule: select questions for which some samples with tools are wrong."""
    # One wrong sample is enough.
    max_rate = (settings.solver_rollouts - 1) / settings.solver_rollouts
    reasons = [tallies[task.id].rejection_reason(max_rate, SOLVED_REASON) for task in tasks]
    return _apply_reasons(SOLVER, {"solver_rollouts": settings.solver_rollouts}, tasks, reasons)


def _apply_reasons(
    name: str, settings: Mapping[str, object], tasks: Sequence[Task], reasons: Sequence[str]
) -> SelectionResult:
    pairs = list(zip(tasks, reasons, strict=True))
    selected = [task for task, reason in pairs if not reason]
    counts = Counter(filter(None, reasons))
    stage = FilterStage(name, dict(settings), len(tasks), len(selected), dict(counts))
    return SelectionResult(
        selected, [(task, name, reason) for task, reason in pairs if reason], [stage]
    )
