"""Questions for reinforcement learning: neither known without tools nor always solved with them.

AFM (arXiv 2508.13167) samples N = 32 answers to a question without tools and keeps those with
r_q = (1/N) sum EM(a_i, gold) <= 0.3. Of code it drops what the fine-tuned model solves 8 of 8
times. Questions of supervised training are removed for the web, and stay for code. Here the verdict
of the run is in the place of EM.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from fieldcraft.config.collection import Select
from fieldcraft.data.duplicates import normal_form
from fieldcraft.data.funnel import Cut, Example
from fieldcraft.records.files import append_text, finite_json, make_folder
from fieldcraft.records.jsonl import parse_object, whole_lines
from fieldcraft.records.reading import reading
from fieldcraft.records.remedies import take_out
from fieldcraft.types import Task, UserError

TOOLLESS, SOLVER = "toolless", "solver"
EVALUATION, TRAINING = "evaluation", "training"  # whose closed-book rates a run may measure
OVERLAP = "asked in supervised training"
KNOWN = "right too often without tools"
SOLVED = "always right with tools"
UNGRADED = "answers that nothing can grade"


class Tally(NamedTuple):
    """Number of samples of a question that are right, of those that could be graded."""

    right: int
    of: int

    @property
    def rate(self) -> float | None:
        return self.right / self.of if self.of else None

    def reason(self, most: float, too_often: str) -> str:
        """Return why the question is left out; "" where no more than the share `most` is right."""
        if self.rate is None:
            return UNGRADED
        return too_often if self.rate > most else ""


class _Line(NamedTuple):
    who: str
    id: str
    right: int
    of: int


class Tallies:
    """The tallies of all questions in a journal, a line each as it is made."""

    def __init__(self, path: Path) -> None:
        """Read what is there. Raises UserError where that is damaged."""
        self.path = path
        self.found: dict[tuple[str, str], Tally] = {}
        make_folder(path.parent)
        for number, text in enumerate(whole_lines(path), start=1):
            where = f"{path}, line {number}"
            record = parse_object(text, where)
            with reading(
                where,
                f"{take_out(path)}, to sample the question anew",
            ):
                line = TypeAdapter(_Line).validate_python(record)
                self.found[line.who, line.id] = Tally(line.right, line.of)

    def append(self, who: str, task: Task, tally: Tally) -> None:
        record = _Line(who, task.id, *tally)._asdict()
        append_text(self.path, f"{finite_json(self.path, record)}\n")
        self.found[who, task.id] = tally

    def of(self, who: str) -> dict[str, Tally]:
        """Return question -> tally."""
        return {task: tally for (name, task), tally in self.found.items() if name == who}


async def sample(
    tallies: Tallies,
    who: str,
    tasks: Sequence[Task],
    samples: int,
    concurrency: int,
    is_right: Callable[[Task, str], Awaitable[bool | None]],
    on_task: Callable[[int], None],
) -> None:
    """Sample every question that has no tally yet.

    Args:
        tallies: what is sampled already, and what this adds to.
        who: answers.
        tasks: the questions.
        samples: of each question.
        concurrency: samples side by side, about.
        is_right: makes the sample with this key, and tells whether it is right; None where
            nothing can grade it.
        on_task: is told how many questions are done.
    """
    known = tallies.of(who)
    left = [task for task in tasks if task.id not in known]
    gate = asyncio.Semaphore(max(1, concurrency // samples))
    done = len(tasks) - len(left)
    on_task(done)

    async def work(task: Task) -> None:
        nonlocal done
        async with gate:
            keys = (f"{who}/{task.id}/{number}" for number in range(samples))
            found = await asyncio.gather(*(is_right(task, key) for key in keys))
        graded = [right for right in found if right is not None]
        tallies.append(who, task, Tally(sum(graded), len(graded)))
        done += 1
        on_task(done)

    try:
        async with asyncio.TaskGroup() as group:
            for task in left:
                group.create_task(work(task))
    except ExceptionGroup as errors:
        mistakes = errors.subgroup(UserError)
        raise mistakes.exceptions[0] if mistakes else errors from None


def with_rates(tasks: Sequence[Task], tallies: Mapping[str, Tally]) -> list[Task]:
    """Return the questions with their closed-book rates in the metadata, where `Task.is_known`
    finds them; those without a rate stay as they are."""
    rates = {identity: tally.rate for identity, tally in tallies.items()}
    return [
        task
        if (rate := rates.get(task.id)) is None
        else replace(task, meta=task.meta | {"closed_book": rate})
        for task in tasks
    ]


class Selected(NamedTuple):
    """Questions that are kept, those that are not with the reason, and the counts."""

    kept: list[Task]
    dropped: list[tuple[Task, str, str]]  # question, rule, reason
    cuts: list[Cut]

    @property
    def examples(self) -> list[Example]:
        kept = [Example("", "", task.question, task.answers) for task in self.kept]
        left = [Example(rule, why, t.question, t.answers) for t, rule, why in self.dropped]
        return [*kept, *left]


def without(trained: Set[str], tasks: Sequence[Task], settings: Select) -> Selected:
    """Apply the first rule: no question of supervised training stays, unless `overlap` is to be
    kept. `trained` are such questions in their normal form."""
    apart = settings.overlap == "drop"
    reasons = [OVERLAP if apart and normal_form(t.question) in trained else "" for t in tasks]
    return _cut("overlap", {"overlap": settings.overlap}, tasks, reasons)


def not_known(tallies: Mapping[str, Tally], tasks: Sequence[Task], settings: Select) -> Selected:
    """Apply the second rule: r_q is known and at most `most`, and is noted in the metadata as
    `closed_book`."""
    noted = with_rates(tasks, tallies)
    reasons = [tallies[task.id].reason(settings.most, KNOWN) for task in tasks]
    return _cut(TOOLLESS, {"samples": settings.samples, "most": settings.most}, noted, reasons)


def not_solved(tallies: Mapping[str, Tally], tasks: Sequence[Task], settings: Select) -> Selected:
    """Apply the third rule: some of the samples of the model with tools are wrong."""
    most = (settings.rollouts - 1) / settings.rollouts  # one that is wrong is enough
    reasons = [tallies[task.id].reason(most, SOLVED) for task in tasks]
    return _cut(SOLVER, {"rollouts": settings.rollouts}, tasks, reasons)


def _cut(
    name: str, settings: Mapping[str, object], tasks: Sequence[Task], reasons: Sequence[str]
) -> Selected:
    pairs = list(zip(tasks, reasons, strict=True))
    kept = [task for task, reason in pairs if not reason]
    counts = Counter(filter(None, reasons))
    cut = Cut(name, dict(settings), len(tasks), len(kept), dict(counts))
    return Selected(kept, [(task, name, reason) for task, reason in pairs if reason], [cut])
