"""Closed-book rates: the share of correct answers without tools, measured once per run.

OTC (arXiv 2504.14870) evaluates whether a model calls a tool for facts that it already knows. A
world knows what its models were taught. For other questions a run measures it: before any other
use, the model answers each of them several times without tools, and the share of correct answers
becomes `closed_book` in the metadata of the question (`Task.is_known`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fieldcraft.config.recipe import get_closed_book_model
from fieldcraft.data.selection import EVALUATION, TRAINING, TallyJournal, add_closed_book_rates
from fieldcraft.records.events import LogMessage
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.sampling import Decoding
from fieldcraft.runs.selecting import make_rollout_check, tally_samples
from fieldcraft.runs.setup import CheckContext
from fieldcraft.types import KNOWN_ACCURACY_THRESHOLD, Task

PHASE_NAME = "closed book"


async def measure_closed_book(context: RunContext, models: Mapping[str, Path]) -> None:
    """Run the measurements that the recipe requests, as soon as the model is among `models`, the
    folders of `start` and of the stages so far. Existing samples are reused."""
    settings, name = context.recipe.closed_book, get_closed_book_model(context.recipe)
    if settings is None or context.closed_book_tallies or name not in models:
        return
    tasks_by_label = _select_tasks(context)
    tallies = TallyJournal(context.folder.closed_book_file)
    count = settings.samples * sum(map(len, tasks_by_label.values()))
    if any(
        task.id not in tallies.get_tallies(label)
        for label, tasks in tasks_by_label.items()
        for task in tasks
    ):
        decoding = Decoding(settings.temperature)
        is_correct = make_rollout_check(context, PHASE_NAME, models[name], [], count, decoding)
        for label, tasks in tasks_by_label.items():
            await tally_samples(
                context, PHASE_NAME, tallies, label, tasks, settings.samples, is_correct
            )
    context.closed_book_tallies = {label: tallies.get_tallies(label) for label in tasks_by_label}
    for label, found in summarise_closed_book(context).items():
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


def check_closed_book(context: CheckContext, notes: list[str]) -> Iterator[str]:
    """Note whether evaluations can distinguish known questions from others; missing labels are not
    an error."""
    recipe, tasks = context.recipe, context.data_source.evaluation_tasks()
    unlabelled = sum(task.is_known is None for task in tasks)
    if (settings := recipe.closed_book) is not None:
        count = settings.samples * (len(tasks) + settings.questions)
        name = get_closed_book_model(recipe)
        notes.append(f"{count} samples without tools from the model of '{name}'")
    elif unlabelled:
        notes.append(
            f"{unlabelled} of {len(tasks)} questions have no label whether the model knows them,"
            " so the offloading rate excludes them: closed_book='{samples: 4}' measures it"
        )
    else:
        notes.append(f"all {len(tasks)} questions have a label whether the model knows them")
    yield from ()
