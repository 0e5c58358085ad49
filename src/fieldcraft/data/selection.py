"""Selection of questions for reinforcement learning: neither known without tools nor always solved.

AFM (arXiv 2508.13167) samples N = 32 answers to a question without tools and selects questions with
r_q = (1/N) sum EM(a_i, gold) <= 0.3. For code it drops questions that the fine-tuned model solves
8 of 8 times. Questions of supervised training are removed for the web, and stay for code. Here the
verdict reward of the run replaces EM.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from fieldcraft.concurrency import run_concurrently
from fieldcraft.config.collection import SelectConfig
from fieldcraft.data.duplicates import normalise_text
from fieldcraft.data.funnel import CardExample, FilterStage
from fieldcraft.records.files import append_text, dump_finite_json, make_folder
from fieldcraft.records.jsonl import parse_object, read_journal
from fieldcraft.types import Task

CLOSED_BOOK, SOLVER = "toolless", "solver"
EVALUATION, TRAINING = "evaluation", "training"  # questions whose closed-book rates are measured
OVERLAP_REASON = "asked in supervised training"
KNOWN_REASON = "right too often without tools"
SOLVED_REASON = "always right with tools"
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
