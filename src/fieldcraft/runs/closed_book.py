"""Closed-book rates: the share of correct answers without tools, measured once per run.

OTC (arXiv 2504.14870) evaluates whether a model calls a tool for facts that it already knows. A
world knows what its models were taught. For other questions a run measures it: before any other
use, the model answers each of them several times without tools, and the share of correct answers
becomes `closed_book` in the metadata of the question (`Task.is_known`).
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fieldcraft.config.recipe import get_closed_book_model
from fieldcraft.data.sample_tallies import (
    EVALUATION,
    TRAINING,
    TallyJournal,
    add_closed_book_rates,
    sample_answers,
)
from fieldcraft.environments.monitors import EvaluationMonitor
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy
from fieldcraft.evaluation.evaluate import make_verdict_rubric
from fieldcraft.records.events import JobsCompleted, LogMessage, track_phase
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.dialects import load_dialect
from fieldcraft.runs.sampling import Decoding
from fieldcraft.runs.setup import CheckContext, CheckReport
from fieldcraft.types import KNOWN_ACCURACY_THRESHOLD, AnyTool, Status, Task

PHASE_NAME = "closed book"


async def measure_closed_book(context: RunContext, model: Path) -> None:
    """Run the measurements of a model that the recipe requests. Existing samples are reused."""
    settings = context.recipe.closed_book
    assert settings is not None
    tasks_by_label = _select_tasks(context)
    tallies = TallyJournal(context.folder.closed_book_file)
    count = settings.samples * sum(map(len, tasks_by_label.values()))
    if any(
        task.id not in tallies.get_tallies(label)
        for label, tasks in tasks_by_label.items()
        for task in tasks
    ):
        decoding = Decoding(settings.temperature)
        is_correct = make_rollout_check(context, PHASE_NAME, model, [], count, decoding)
        for label, tasks in tasks_by_label.items():
            await tally_samples(
                context, PHASE_NAME, tallies, label, tasks, settings.samples, is_correct
            )
    context.closed_book_tallies = {label: tallies.get_tallies(label) for label in tasks_by_label}
    summary = summarise_closed_book(context)
    context.report_figures["closed_book"] = summary
    for label, found in summary.items():
        text = (
            f"{found['known']} of {found['n']} are correct in at least {KNOWN_ACCURACY_THRESHOLD} "
            "of the samples"
        )
        context.emit(LogMessage(f"{PHASE_NAME}, questions of {label}: {text}"))


def _select_tasks(context: RunContext) -> dict[str, Sequence[Task]]:
    settings = context.recipe.closed_book
    assert settings is not None
    tasks_by_label: dict[str, Sequence[Task]] = {EVALUATION: context.data_source.evaluation_tasks()}
    if settings.questions:
        tasks_by_label[TRAINING] = context.data_source.train_tasks()[: settings.questions]
    return tasks_by_label


def summarise_closed_book(context: RunContext) -> dict[str, dict[str, Any]]:
    """Return the measurements on the evaluation and training questions: their number, their mean
    rate, the number of known questions, and the agreement with the label of their source, if
    any."""
    tasks_by_label = _select_tasks(context)
    return {
        label: _summarise_tasks(add_closed_book_rates(tasks_by_label[label], found))
        for label, found in context.closed_book_tallies.items()
    }


def _summarise_tasks(tasks: Sequence[Task]) -> dict[str, Any]:
    graded = [task.meta for task in tasks if "closed_book" in task.meta]
    rates = [(meta["closed_book"], meta.get("known")) for meta in graded]
    claims = {"known": True, "unknown": False}
    return {
        "n": len(rates),
        "rate": fmean(rate for rate, _ in rates) if rates else None,
        "known": sum(rate >= KNOWN_ACCURACY_THRESHOLD for rate, _ in rates),
        "agreement": {
            name: {
                "n": sum(known is claim for _, known in rates),
                "known": sum(
                    known is claim and rate >= KNOWN_ACCURACY_THRESHOLD for rate, known in rates
                ),
            }
            for name, claim in claims.items()
        },
    }


def check_closed_book(context: CheckContext, report: CheckReport) -> None:
    """Note whether evaluations can distinguish known questions from others; missing labels are not
    an error."""
    recipe, tasks = context.recipe, context.data_source.evaluation_tasks()
    unlabelled = sum(task.is_known is None for task in tasks)
    if (settings := recipe.closed_book) is not None:
        count = settings.samples * (len(tasks) + settings.questions)
        name = get_closed_book_model(recipe)
        report.note(f"{count} samples without tools from the model of '{name}'")
    elif unlabelled:
        report.note(
            f"{unlabelled} of {len(tasks)} questions have no label whether the model knows them,"
            " so the offloading rate excludes them: closed_book='{samples: 4}' measures it"
        )
    else:
        report.note(f"all {len(tasks)} questions have a label whether the model knows them")


# -- samples -----------------------------------------------------------------------------------

CorrectnessCheck = Callable[[Task, str], Awaitable[bool | None]]


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
    recipe, dialect = context.recipe, load_dialect(context.recipe, model)
    env = ToolEnvironment(dialect, tools, recipe.budget)
    engine = context.make_engine(context.load_policy_model(model), dialect)
    seed = zlib.crc32(f"{recipe.seed}:{name}".encode())
    policy = Policy(
        engine=engine, temperature=decoding.temperature, truncation=decoding.truncation, seed=seed
    )
    rubric = make_verdict_rubric(context.judge, context.verdict_reward)
    monitor = EvaluationMonitor(name, count, recipe.evaluation.max_broken)

    async def is_correct(task: Task, key: str) -> bool | None:
        trajectory = await env.run(task, policy, key)
        monitor.add(trajectory)
        await rubric.score_async_rewards([trajectory])
        await rubric.score([trajectory])
        return False if trajectory.status is Status.ERROR else trajectory.is_correct

    return is_correct
