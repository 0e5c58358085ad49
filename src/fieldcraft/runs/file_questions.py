"""Questions of the user's files: those to train on, and those that evaluations ask."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.decontamination import ASKED, EvaluationQuestions
from fieldcraft.data.formats.kinds import UNVERIFIED
from fieldcraft.data.sources import Questions, read_questions, with_source
from fieldcraft.runs.sources import Doubt
from fieldcraft.types import Task, UserError

HELDOUT = "heldout"  # the split that is cut off `tasks`, or the only file of evaluations


class FileQuestions:
    """Questions of `tasks` and of `evaluation.tasks`.

    Where a split of the evaluation has no file, it is cut off `tasks`. No question that an
    evaluation asks is among those to train on, though it stands in a file twice.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._files = recipe.evaluation.tasks
        self._sizes = recipe.evaluation.sizes

    @cached_property
    def train(self) -> list[Task]:
        """Questions to train on, none without `tasks`. Raises UserError where evaluations ask all
        of them."""
        kept = [task for task in self._for_training if task not in self.asked]
        if self._for_training and not kept:
            raise UserError(
                f"no question of {self.recipe.tasks} is left to train on, because evaluations ask"
                " them all: give questions with other words and other ids than theirs."
            )
        return kept

    @cached_property
    def test(self) -> list[Task]:
        """Questions of the evaluations, in the order of their splits."""
        found: list[Task] = []
        for split in self._sizes:
            found += [
                replace(task, meta={**task.meta, "split": split}) for task in self._of_split(split)
            ]
        return _with_own_ids(found)

    @cached_property
    def asked(self) -> EvaluationQuestions:
        """Questions of the evaluations, to be found among others."""
        return EvaluationQuestions(self.test)

    def remarks(self) -> list[str]:
        """Return the differences from what the recipe asks, a sentence each."""
        found = [line for path, read in self._found.items() for line in read.remarks(path)]
        found += self._remarks_on_sizes()
        files = {path: read for path, read in self._read.items() if read}
        for path, read in files.items():
            if unverified := sum(UNVERIFIED in task.meta for task in read):
                found.append(
                    f"{unverified} questions of {path} are graded by the answer that their"
                    " demonstration ends in, which nobody has graded"
                )
        if self.recipe.tasks is not None:
            if left_out := len(self._for_training) - len(self.train):
                found.append(f"{left_out} questions of {self.recipe.tasks} left out: {ASKED}")
            found += doubts(self.asked, self._for_training, self.recipe.tasks)
        return found

    def _remarks_on_sizes(self) -> Iterable[str]:
        for split, wanted in self._sizes.items():
            key, count = f"evaluation.splits.{split}={wanted}", len(self._of_split(split))
            if split in self._files:
                path = self._files[split]
                whole = len(self._read[path])
                if wanted is not None and wanted > whole:
                    yield f"{key}, but {path} has only {whole} questions"
                elif count < whole:
                    yield f"{key}, so {count} of the {whole} questions of {path} are asked"
            elif split == HELDOUT and count != wanted:
                yield (
                    f"{key} is more than half of the {len(self._shuffled)} questions of"
                    f" {self.recipe.tasks}, so {count} are held out"
                )

    # -- files ----------------------------------------------------------------------------------

    @cached_property
    def _found(self) -> dict[Path, Questions]:
        """Questions found in every file, with those that are left out."""
        tasks = () if self.recipe.tasks is None else (self.recipe.tasks,)
        files = dict.fromkeys([*tasks, *self._files.values()])
        return {path: read_questions(path, self.recipe.max_left_out) for path in files}

    @cached_property
    def _read(self) -> dict[Path, list[Task]]:
        """Questions of every file."""
        return {path: list(found.tasks) for path, found in self._found.items()}

    @cached_property
    def _shuffled(self) -> list[Task]:
        """Questions of `tasks`, shuffled; the last ones are held out."""
        if self.recipe.tasks is None:
            return []
        tasks = list(self._read[self.recipe.tasks])
        random.Random(f"tasks:{self.recipe.seed}").shuffle(tasks)
        if len(tasks) < 2 and self._cuts:
            raise UserError(f"{self.recipe.tasks} needs two questions or more, to train and test.")
        return tasks

    @property
    def _cuts(self) -> bool:
        """Return whether a part of `tasks` is held out."""
        return HELDOUT not in self._files and bool(self._sizes.get(HELDOUT))

    @property
    def _first_test(self) -> int:
        """Position of the first question that is held out."""
        wanted = (self._sizes.get(HELDOUT) or 0) if self._cuts else 0
        return len(self._shuffled) - min(len(self._shuffled) // 2, wanted)

    @property
    def _for_training(self) -> Sequence[Task]:
        return self._shuffled[: self._first_test]

    def _of_split(self, split: str) -> list[Task]:
        """Return the questions of a split, none of one that only a world has."""
        if split in self._files:
            return _sample(self._read[self._files[split]], self._sizes[split], self._files[split])
        if split == HELDOUT and self.recipe.tasks is not None:
            return with_source(self._shuffled[self._first_test :], self.recipe.tasks)
        return []


def doubts(asked: EvaluationQuestions, tasks: Sequence[Task], path: Path) -> list[str]:
    """Return doubts about the questions of a file: those that have no more than the id of one that
    is asked, and so are left out, and those that are like one, and so are not."""
    found = []
    if same := asked.same_by_id(tasks):
        found.append(
            f"{len(same)} of the questions of {path} have only the id of one that an evaluation"
            f" asks, such as {same[0].trained!r}, where it asks {same[0].asked!r}: give them ids of"
            " their own if they are other questions"
        )
    if near := asked.near_duplicates(tasks):
        found.append(
            f"{len(near)} of the questions of {path} are like one that an evaluation asks, such as"
            f" {near[0].trained!r}, where it asks {near[0].asked!r}: remove them if they are the"
            " same question"
        )
    return list(map(Doubt, found))


def _sample(tasks: Sequence[Task], size: int | None, path: Path) -> list[Task]:
    """Return at most `size` questions of a file, the same ones for every seed, in their order."""
    if size is not None and size < len(tasks):
        chosen = random.Random("evaluation").sample(range(len(tasks)), size)
        tasks = [tasks[place] for place in sorted(chosen)]
    return with_source(tasks, path)


def _with_own_ids(tasks: Iterable[Task]) -> list[Task]:
    """Return the same with another id where one comes again: files may count alike."""
    found, seen = [], set[str]()
    for task in tasks:
        if task.id in seen:
            task = replace(task, id=f"{task.meta['split']}:{task.id}")
        seen.add(task.id)
        found.append(task)
    return found
