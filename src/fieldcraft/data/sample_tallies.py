"""Tallies of several samples of each question: how many a model answers correctly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from fieldcraft.concurrency import run_concurrently
from fieldcraft.records.files import append_text, dump_finite_json, make_folder
from fieldcraft.records.jsonl import parse_object, read_journal
from fieldcraft.types import Task

EVALUATION, TRAINING = "evaluation", "training"  # questions whose closed-book rates are measured
UNGRADED_REASON = "answers that cannot be graded"


class SampleTally(NamedTuple):
    """Number of correct samples of a question, and number of samples that could be graded."""

    num_correct: int
    num_graded: int

    @property
    def rate(self) -> float | None:
        return self.num_correct / self.num_graded if self.num_graded else None

    def rejection_reason(self, max_rate: float, reason: str) -> str:
        """Return the reason to leave the question out, or "" if the fraction of correct samples is
        at most `max_rate`."""
        if self.rate is None:
            return UNGRADED_REASON
        return reason if self.rate > max_rate else ""


class _TallyLine(NamedTuple):
    who: str
    id: str
    right: int
    of: int


def _parse_tally(line: bytes, location: str) -> _TallyLine:
    return TypeAdapter(_TallyLine).validate_python(parse_object(line, location))


class TallyJournal:
    """Journal of the tallies of all questions, with one line per tally."""

    def __init__(self, path: Path) -> None:
        """Read the existing journal. Raises UserError if it is damaged."""
        self.path = path
        self.tallies: dict[tuple[str, str], SampleTally] = {}
        make_folder(path.parent)
        for line in read_journal(path, _parse_tally, "to sample the question again"):
            self.tallies[line.who, line.id] = SampleTally(line.right, line.of)

    def append(self, model: str, task: Task, tally: SampleTally) -> None:
        record = _TallyLine(model, task.id, *tally)._asdict()
        append_text(self.path, f"{dump_finite_json(self.path, record)}\n")
        self.tallies[model, task.id] = tally

    def get_tallies(self, model: str) -> dict[str, SampleTally]:
        """Return the tally of each question id."""
        return {task: tally for (name, task), tally in self.tallies.items() if name == model}


async def sample_answers(
    tallies: TallyJournal,
    model: str,
    tasks: Sequence[Task],
    samples: int,
    concurrency: int,
    is_correct: Callable[[Task, str], Awaitable[bool | None]],
    on_task: Callable[[int], None],
) -> None:
    """Sample each question that has no tally yet.

    Args:
        tallies: journal of existing tallies, to which new ones are appended.
        model: name of the model that answers.
        tasks: the questions.
        samples: number of samples per question.
        concurrency: approximate number of concurrent samples.
        is_correct: function that generates the sample with a given key and returns whether it is
            correct, or None if it cannot be graded.
        on_task: callback that receives the number of finished questions.
    """
    sampled = tallies.get_tallies(model)
    pending = [task for task in tasks if task.id not in sampled]
    num_done = len(tasks) - len(pending)
    on_task(num_done)

    async def sample_task(task: Task) -> tuple[Task, SampleTally]:
        keys = (f"{model}/{task.id}/{number}" for number in range(samples))
        found = await asyncio.gather(*(is_correct(task, key) for key in keys))
        graded = [verdict for verdict in found if verdict is not None]
        return task, SampleTally(sum(graded), len(graded))

    def on_done(result: tuple[Task, SampleTally]) -> None:
        nonlocal num_done
        tallies.append(model, *result)
        num_done += 1
        on_task(num_done)

    jobs = [(task,) for task in pending]
    await run_concurrently(jobs, sample_task, max(1, concurrency // samples), on_done)


def add_closed_book_rates(tasks: Sequence[Task], tallies: Mapping[str, SampleTally]) -> list[Task]:
    """Return the questions with their closed-book rates in the metadata, where `Task.is_known`
    finds them; questions without a rate are unchanged."""
    rates = {identity: tally.rate for identity, tally in tallies.items()}
    return [
        task
        if (rate := rates.get(task.id)) is None
        else replace(task, meta=task.meta | {"closed_book": rate})
        for task in tasks
    ]
