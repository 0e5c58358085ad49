"""User-provided questions for training and for evaluations."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.decontamination import IN_EVALUATION, EvaluationQuestions
from fieldcraft.data.file_formats import UNVERIFIED_KEY
from fieldcraft.data.tasks import ParsedTasks, add_data_source, read_task_file, select_tasks
from fieldcraft.runs.sources import CheckWarning
from fieldcraft.types import Task, UserError

HELDOUT_SPLIT = "heldout"  # split held out of `tasks`, or the only evaluation file


class FileQuestions:
    """Questions of `tasks` and of `evaluation.tasks`.

    An evaluation split without a file is held out of `tasks`. No evaluation question is used for
    training, even if a file contains it twice.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._files = recipe.evaluation.tasks
        self._sizes = recipe.evaluation.split_sizes

    @cached_property
    def train(self) -> list[Task]:
        """Training questions, empty without `tasks`. Raises UserError if evaluations use all of
        them."""
        usable = [task for task in self._train_candidates if task not in self.evaluation_questions]
        if self._train_candidates and not usable:
            raise UserError(
                f"no question of {self.recipe.tasks} is left to train on, because evaluations use"
                " all of them: give questions with other texts and other ids."
            )
        return usable

    @cached_property
    def test(self) -> list[Task]:
        """Evaluation questions, in the order of their splits."""
        found: list[Task] = []
        for split in self._sizes:
            found += [
                replace(task, meta={**task.meta, "split": split})
                for task in self._split_tasks(split)
            ]
        return _with_unique_ids(found)

    @cached_property
    def evaluation_questions(self) -> EvaluationQuestions:
        """Evaluation questions, for matching against others."""
        return EvaluationQuestions(self.test)

    def warnings(self) -> list[str]:
        """Return the deviations from the recipe, a sentence each."""
        found = [
            line for path, read in self._questions_by_file.items() for line in read.warnings(path)
        ]
        found += self._size_warnings()
        files = {path: read for path, read in self._tasks_by_file.items() if read}
        for path, read in files.items():
            if unverified := sum(UNVERIFIED_KEY in task.meta for task in read):
                found.append(
                    f"{unverified} questions of {path} are graded against the final answer of"
                    " their demonstration, which is itself not graded"
                )
        if self.recipe.tasks is not None:
            if left_out := len(self._train_candidates) - len(self.train):
                found.append(
                    f"{left_out} questions of {self.recipe.tasks} left out: {IN_EVALUATION}"
                )
            found += find_overlap_warnings(
                self.evaluation_questions, self._train_candidates, self.recipe.tasks
            )
        return found

    def _size_warnings(self) -> Iterable[str]:
        for split, size in self._sizes.items():
            key, count = f"evaluation.splits.{split}={size}", len(self._split_tasks(split))
            if split in self._files:
                path = self._files[split]
                total = len(self._tasks_by_file[path])
                if size is not None and size > total:
                    yield f"{key}, but {path} has only {total} questions"
                elif count < total:
                    yield f"{key}, so {count} of the {total} questions of {path} are used"
            elif split == HELDOUT_SPLIT and count != size:
                yield (
                    f"{key} is more than half of the {len(self._shuffled_tasks)} questions of"
                    f" {self.recipe.tasks}, so {count} are held out"
                )

    # -- files ----------------------------------------------------------------------------------

    @cached_property
    def _questions_by_file(self) -> dict[Path, ParsedTasks]:
        """Questions of every file, with the rejected ones."""
        tasks = () if self.recipe.tasks is None else (self.recipe.tasks,)
        files = dict.fromkeys([*tasks, *self._files.values()])
        return {path: read_task_file(path, self.recipe.max_left_out) for path in files}

    @cached_property
    def _tasks_by_file(self) -> dict[Path, list[Task]]:
        """Questions of every file."""
        return {path: list(found.tasks) for path, found in self._questions_by_file.items()}

    @cached_property
    def _shuffled_tasks(self) -> list[Task]:
        """Questions of `tasks`, shuffled; the last ones are held out."""
        if self.recipe.tasks is None:
            return []
        tasks = list(self._tasks_by_file[self.recipe.tasks])
        random.Random(f"tasks:{self.recipe.seed}").shuffle(tasks)
        if len(tasks) < 2 and self._holds_out:
            raise UserError(f"{self.recipe.tasks} needs two questions or more, to train and test.")
        return tasks

    @property
    def _holds_out(self) -> bool:
        """Return whether a part of `tasks` is held out."""
        return HELDOUT_SPLIT not in self._files and bool(self._sizes.get(HELDOUT_SPLIT))

    @property
    def _heldout_start(self) -> int:
        """Position of the first held-out question."""
        size = (self._sizes.get(HELDOUT_SPLIT) or 0) if self._holds_out else 0
        return len(self._shuffled_tasks) - min(len(self._shuffled_tasks) // 2, size)

    @property
    def _train_candidates(self) -> Sequence[Task]:
        return self._shuffled_tasks[: self._heldout_start]

    def _split_tasks(self, split: str) -> list[Task]:
        """Return the questions of a split, empty for a split that only worlds have."""
        if split in self._files:
            path = self._files[split]
            tasks = select_tasks(self._tasks_by_file[path], self._sizes[split])
            return add_data_source(tasks, path)
        if split == HELDOUT_SPLIT and self.recipe.tasks is not None:
            return add_data_source(self._shuffled_tasks[self._heldout_start :], self.recipe.tasks)
        return []


def find_overlap_warnings(
    evaluation_questions: EvaluationQuestions, tasks: Sequence[Task], path: Path
) -> list[str]:
    """Return warnings about the questions of a file: those that share only their id with an
    evaluation question, and so are excluded, and those that are similar to one, and so are
    included."""
    found = []
    if same := evaluation_questions.find_same_ids(tasks):
        found.append(
            f"{len(same)} of the questions of {path} have only the id of one that an evaluation"
            f" asks, such as {same[0].training_question!r}, where it asks "
            f"{same[0].evaluation_question!r}: give them ids of"
            " their own if they are other questions"
        )
    if near := evaluation_questions.find_near_duplicates(tasks):
        found.append(
            f"{len(near)} of the questions of {path} are like one that an evaluation asks, such as"
            f" {near[0].training_question!r}, where it asks {near[0].evaluation_question!r}: remove"
            " them if they are the same question"
        )
    return list(map(CheckWarning, found))


def _with_unique_ids(tasks: Iterable[Task]) -> list[Task]:
    """Return the questions with unique ids, because different files may use the same numbering."""
    found, seen = [], set[str]()
    for task in tasks:
        if task.id in seen:
            task = replace(task, id=f"{task.meta['split']}:{task.id}")
        seen.add(task.id)
        found.append(task)
    return found
