"""Questions, passages and demonstrations of the user's files, as the inputs of a run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.corpora import Corpus
from fieldcraft.data.decontamination import ASKED
from fieldcraft.data.formats.convert import read_shown
from fieldcraft.data.grading import Grader
from fieldcraft.data.pairs import read_pairs
from fieldcraft.data.records import hash_of
from fieldcraft.data.sources import write_tasks
from fieldcraft.dialects.demonstrations import (
    Unwritable,
    encode_demonstration,
    encode_pair,
    reads_back,
)
from fieldcraft.records.chains import longest_chain
from fieldcraft.rewards.grading import recorded_as
from fieldcraft.runs.build import make_correct
from fieldcraft.runs.file_questions import FileQuestions, doubts
from fieldcraft.runs.loop import run_async
from fieldcraft.runs.sources import Inputs, Schemas, agreed
from fieldcraft.types import Action, Answer, Dialect, Step, Task, Trajectory, UserError
from fieldcraft.worlds.base import TrajectoryPair

DEMONSTRATIONS, PAIRS = "demonstrations", "pairs"  # data sets
UNGRADED = "with an answer that nothing can grade"
T = TypeVar("T")


class FileInputs(Inputs):
    """Questions, passages and demonstrations of the user's files."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.questions = FileQuestions(recipe)
        self._corpus = None if recipe.corpus is None else Corpus(recipe.corpus, recipe.max_left_out)
        self._verdicts: dict[str, bool | None] = {}  # of demonstrations, by a hash
        self._notes: dict[str, list[str]] = {}  # on a data set
        asked = "evaluation.tasks" if recipe.tasks is None else "tasks"
        if recipe.model is None and _reads_model(recipe):
            raise UserError(f"{asked}=FILE needs model=DIR, a checkpoint folder to start from.")
        if recipe.offers_search and recipe.corpus is None and recipe.search.url is None:
            raise UserError(
                f"{asked}=FILE needs corpus=FILE, or search.url= of a search server, for the tool"
                " search: give one of them, or tools= without search."
            )

    def write_world(self, folder: Path) -> None:
        if self._corpus is not None:
            corpus = self._corpus.ensure(folder / "corpus.jsonl")
            if corpus != folder / "corpus.jsonl":
                (folder / "corpus.jsonl").symlink_to(corpus.resolve())
        write_tasks(self.evaluation_tasks(), folder / "evaluation.jsonl")
        write_tasks(self.train_tasks(), folder / "train.jsonl")

    def trajectories(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[Trajectory]:
        """Return imported demonstrations whose answers are right by the verdict of the run, in its
        dialect. What nothing can grade is trusted only where the recipe says so."""
        self._require(data)
        kept, reasons = self.usable_demonstrations(dialect, tools)
        return _some(kept, reasons, f"no demonstration of {self.recipe.demonstrations}")[:count]

    def _require(self, data: str) -> None:
        if data != DEMONSTRATIONS or self.recipe.demonstrations is None:
            raise UserError(
                f"data set '{data}' is unknown here: use data: demonstrations with"
                " demonstrations=FILE."
            )

    def shown(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[tuple[Task, list[Step]]]:
        self._require(data)
        return self._read()[0][:count]

    def encoded(
        self, shown: Sequence[tuple[Task, Sequence[Step]]], dialect: Dialect, tools: Schemas
    ) -> list[Trajectory]:
        kept, reasons = self._usable(shown, dialect, tools)
        return _some(kept, reasons, "no filtered demonstration")

    def notes(self, data: str, dialect: Dialect, tools: Schemas) -> list[str]:
        if data not in self._notes:
            usable = self.usable_pairs if data == PAIRS else self.usable_demonstrations
            usable(dialect, tools)
        return self._notes[data]

    def notes_of_shown(self, data: str) -> list[str]:
        assert self.recipe.demonstrations is not None
        _, reasons, tasks = self._read()
        return self._noted(tasks, reasons, self.recipe.demonstrations)

    def _noted(self, tasks: Sequence[Task], reasons: Counter[str], path: Path) -> list[str]:
        left_out = [f"{count} left out: {reason}" for reason, count in reasons.most_common()]
        return left_out + doubts(self.questions.asked, tasks, path)

    def usable_demonstrations(
        self, dialect: Dialect, tools: Schemas
    ) -> tuple[list[Trajectory], Counter[str]]:
        """Return the demonstrations to train on, and how many others were left out, by the
        reason."""
        assert self.recipe.demonstrations is not None
        read, unread, tasks = self._read()
        kept, unused = self._usable(read, dialect, tools)
        reasons = unread + unused
        self._notes[DEMONSTRATIONS] = [
            *self._noted(tasks, reasons, self.recipe.demonstrations),
            *calls_of_others(read, tools),
        ]
        return kept, reasons

    def _read(self) -> tuple[list[tuple[Task, list[Step]]], Counter[str], list[Task]]:
        """Return the demonstrations of questions that no evaluation asks, the reasons for which
        others are left out, and the questions of both."""
        assert self.recipe.demonstrations is not None
        read, reasons = read_shown(self.recipe.demonstrations, self.recipe.max_left_out)
        kept = [each for each in read if each[0] not in self.questions.asked]
        asked = Counter({ASKED: len(read) - len(kept)})
        return kept, reasons + asked, [task for task, _ in read]

    def _usable(
        self, read: Sequence[tuple[Task, Sequence[Step]]], dialect: Dialect, tools: Schemas
    ) -> tuple[list[Trajectory], Counter[str]]:
        kept, reasons = [], Counter[str]()
        refused: list[Unwritable] = []
        for (task, steps), right in zip(read, self._graded(read), strict=True):
            if right is False:
                answered = bool(steps) and isinstance(steps[-1], Answer)
                reasons["with a wrong answer" if answered else "without an answer"] += 1
                continue
            if right is None and self.recipe.ungraded == "drop":
                reasons[UNGRADED] += 1
                continue
            try:
                trajectory = encode_demonstration(task, steps, dialect, tools)
            except Unwritable as error:
                refused.append(error)
                continue
            if not trajectory.well_formed:
                reasons["not well-formed"] += 1
            elif longest_chain(trajectory) > self.recipe.budget.total_tokens:
                reasons["longer than budget.total_tokens"] += 1
            else:
                kept.append(trajectory)
        path, most = self.recipe.demonstrations, self.recipe.max_left_out
        assert path is not None
        return kept, reasons + agreed(path, refused, len(read), most)

    def _graded(self, read: Sequence[tuple[Task, Sequence[Step]]]) -> list[bool | None]:
        """Return the verdict on each demonstration. A run reads a file more than once, and a judge
        or a sandbox takes its time, so the verdicts are kept."""
        keys = [hash_of(f"{task} {steps}") for task, steps in read]
        new = {key: each for key, each in zip(keys, read, strict=True) if key not in self._verdicts}
        if new:
            grader = Grader(self.correct or make_correct(self.recipe))

            async def ask() -> list[bool | None]:
                return await asyncio.gather(*(grader.right(*each) for each in new.values()))

            self._verdicts |= zip(new, run_async(ask()), strict=True)
        return [self._verdicts[key] for key in keys]

    def pairs(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[TrajectoryPair]:
        """Return the pairs of the user's file, in the run's dialect."""
        if data != PAIRS or self.recipe.pairs is None:
            raise UserError(
                f"data set '{data}' of pairs is unknown here: use data: pairs with pairs=FILE, as"
                " 'fieldcraft run autocoa-data' writes one."
            )
        kept, reasons = self.usable_pairs(dialect, tools)
        return _some(kept, reasons, f"no pair of {self.recipe.pairs}")[:count]

    def usable_pairs(
        self, dialect: Dialect, tools: Schemas
    ) -> tuple[list[TrajectoryPair], Counter[str]]:
        """Return the pairs to train on, and how many others were left out, by the reason. By the
        verdict of the run an answer that is chosen must be right, and one that is rejected wrong.
        """
        assert self.recipe.pairs is not None
        kept: list[TrajectoryPair] = []
        read, reasons = read_pairs(self.recipe.pairs, self.recipe.max_left_out)
        apart = [pair for pair in read if pair.task not in self.questions.asked]
        reasons[ASKED] += len(read) - len(apart)
        chosen = self._graded([(pair.task, pair.chosen) for pair in apart])
        rejected = self._graded([(pair.task, pair.rejected) for pair in apart])
        for pair, *rights in zip(apart, chosen, rejected, strict=True):
            ways = (pair.chosen, pair.rejected)
            ends = [isinstance(way[-1], Answer) for way in ways]  # other ways have no verdict
            known = recorded_as(self.recipe.correct, pair.task) not in self.unasked
            if known and ((ends[0] and rights[0] is False) or (ends[1] and rights[1])):
                reasons["that chooses a wrong answer or rejects a right one"] += 1
                continue
            if None in rights and self.recipe.ungraded == "drop":
                reasons[UNGRADED] += 1
                continue
            try:
                sides = encode_pair(pair.task, pair.before, ways, dialect, tools)
            except Unwritable as error:
                reasons[error.reason] += 1
                continue
            both = list(zip(sides, ways, strict=True))
            if not all(reads_back(side, way[-1], dialect, tools) for side, way in both):
                reasons[f"not as the dialect '{dialect.name}' reads it back"] += 1
            elif max(map(longest_chain, sides)) > self.recipe.budget.total_tokens:
                reasons["longer than budget.total_tokens"] += 1
            else:
                kept.append(sides)
        tasks = [pair.task for pair in read]
        self._notes[PAIRS] = self._noted(tasks, +reasons, self.recipe.pairs)
        return kept, +reasons

    def remarks(self) -> list[str]:
        return self.questions.remarks()

    def remarks_on_corpus(self) -> list[str]:
        return [] if self._corpus is None else self._corpus.remarks()

    def train_tasks(self) -> list[Task]:
        return list(self.questions.train)

    def test_tasks(self) -> list[Task]:
        return list(self.questions.test)


def _reads_model(recipe: Recipe) -> bool:
    """Return whether a run needs a model to start from."""
    if recipe.stages or (recipe.collect is None and recipe.select is None):
        return True
    return recipe.select is not None and bool(recipe.select.reads)


def calls_of_others(shown: Sequence[tuple[Task, Sequence[Step]]], tools: Schemas) -> list[str]:
    """Return a note on demonstrations that call tools which no prompt of the run shows: a model
    learns to call what it was never told of."""
    offered = {tool["function"]["name"] for tool in tools}
    called = [{step.tool for step in steps if isinstance(step, Action)} for _, steps in shown]
    others = [min(names - offered) for names in called if names - offered]
    if not others:
        return []
    return [
        f"{len(others)} call tools that the run does not have, such as '{others[0]}': add them to"
        " tools, or remove the demonstrations"
    ]


def _some(kept: list[T], reasons: Counter[str], none_of: str) -> list[T]:
    """Return `kept`, the examples that can be used. Raises UserError with the reasons if there are
    none."""
    if not kept:
        why = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        if reasons[ASKED] > reasons.total() / 2:
            raise UserError(
                f"{none_of} can be used ({why}): give some of other questions, or let evaluations"
                " ask fewer by evaluation.splits."
            )
        raise UserError(
            f"{none_of} can be used ({why or 'it is empty'}): raise budget.total_tokens, set a"
            " judge or ungraded=trust for answers that nothing can grade, or give another file."
        )
    return kept
