"""Closed-book rates: the share of right answers without tools, measured once in a run.

OTC (arXiv 2504.14870) asks whether a model calls a tool for what it can answer by itself. A world
knows what its models were taught. Of other questions a run finds it out: before anything reads
it, the model answers each of them several times without tools, and the share of right answers is
`closed_book` in the metadata of the question (`Task.is_known`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fieldcraft.config.recipe import closed_book_model
from fieldcraft.data.selection import EVALUATION, TRAINING, Tallies, with_rates
from fieldcraft.records.events import Said
from fieldcraft.runs.context import Context
from fieldcraft.runs.sampling import Decoding
from fieldcraft.runs.selecting import rolled_out, tally
from fieldcraft.runs.setup import Setup
from fieldcraft.types import KNOWN_RATE, Task

WORK = "closed book"


async def measure_closed_book(context: Context, models: Mapping[str, Path]) -> None:
    """Measure what the recipe asks for, as soon as the model is among `models`, the folders of
    `start` and of the stages so far. Samples that were taken before are not taken again."""
    settings, name = context.recipe.closed_book, closed_book_model(context.recipe)
    if settings is None or context.rates or name not in models:
        return
    asked = _asked(context)
    tallies = Tallies(context.folder.closed_book)
    count = settings.samples * sum(map(len, asked.values()))
    if any(task.id not in tallies.of(who) for who, tasks in asked.items() for task in tasks):
        how = Decoding(settings.temperature)
        is_right = rolled_out(context, WORK, models[name], [], count, how)
        for who, tasks in asked.items():
            await tally(context, WORK, tallies, who, tasks, settings.samples, is_right)
    context.rates = {who: tallies.of(who) for who in asked}
    for who, found in closed_book_report(context).items():
        words = f"{found['known']} of {found['n']} are right in {KNOWN_RATE} of the samples or more"
        context.emit(Said(f"{WORK}, questions of {who}: {words}"))


def _asked(context: Context) -> dict[str, Sequence[Task]]:
    settings = context.recipe.closed_book
    assert settings is not None
    asked: dict[str, Sequence[Task]] = {EVALUATION: context.inputs.evaluation_tasks()}
    if settings.questions:
        asked[TRAINING] = context.inputs.train_tasks()[: settings.questions]
    return asked


def closed_book_report(context: Context) -> dict[str, dict[str, Any]]:
    """Return the measurements of the questions of evaluation and of training: how many there are,
    their mean rate, how many are known by it, and how far it agrees where their source says so."""
    asked = _asked(context)
    return {who: _summary(with_rates(asked[who], found)) for who, found in context.rates.items()}


def _summary(tasks: Sequence[Task]) -> dict[str, Any]:
    graded = [task.meta for task in tasks if "closed_book" in task.meta]
    rates = [(meta["closed_book"], meta.get("known")) for meta in graded]
    said = {"known": True, "unknown": False}
    return {
        "n": len(rates),
        "rate": fmean(rate for rate, _ in rates) if rates else None,
        "known": sum(rate >= KNOWN_RATE for rate, _ in rates),
        "agreement": {
            name: {
                "n": sum(known is wanted for _, known in rates),
                "known": sum(known is wanted and rate >= KNOWN_RATE for rate, known in rates),
            }
            for name, wanted in said.items()
        },
    }


def closed_book_problems(setup: Setup, notes: list[str]) -> Iterator[str]:
    """Note whether evaluations will tell known questions from others; what is missing is no
    mistake."""
    recipe, tasks = setup.recipe, setup.inputs.evaluation_tasks()
    silent = sum(task.is_known is None for task in tasks)
    if (settings := recipe.closed_book) is not None:
        count = settings.samples * (len(tasks) + settings.questions)
        name = closed_book_model(recipe)
        notes.append(f"{count} samples without tools from the model of '{name}'")
    elif silent:
        notes.append(
            f"{silent} of {len(tasks)} questions do not say whether the model knows them, so that"
            " the offloading rate leaves them out: closed_book='{samples: 4}' measures it"
        )
    else:
        notes.append(f"all {len(tasks)} questions say whether the model knows them")
    yield from ()
