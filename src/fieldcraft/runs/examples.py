"""Examples out of a run's data, as it is asked, graded and trained.

`fieldcraft check --show` prints them, and a run keeps a page of them beside its report.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from fieldcraft.config.recipe import Recipe
from fieldcraft.config.stages import Pairs, Sft
from fieldcraft.dialects.demonstrations import encode_turn
from fieldcraft.dialects.naming import Names
from fieldcraft.records.examples import DemonstrationExample, Examples, QuestionExample
from fieldcraft.rewards.grading import recorded_as
from fieldcraft.rewards.verdict import grade
from fieldcraft.runs.loop import run_async
from fieldcraft.runs.sources import Inputs, Schemas
from fieldcraft.types import Answer, Author, Dialect, Reward, Task, Trajectory, UserError

PAGED = 3  # examples on the page of a run
UNKNOWING = "I do not know"  # a wrong answer where no other question has one


@dataclass(frozen=True)
class DataOfRun:
    """Data that examples are taken from. `correct` gives the verdicts. Without a dialect, as where
    a teacher is collected from or an environment of others asks, there are no prompts and no
    demonstrations."""

    recipe: Recipe
    inputs: Inputs
    correct: Reward
    schemas: Schemas = ()
    dialect: Dialect | None = None

    @cached_property
    def _tasks(self) -> list[Task]:
        """Questions of training and evaluations, taking turns."""
        both = zip_longest(self.inputs.train_tasks(), self.inputs.evaluation_tasks())
        return [task for pair in both for task in pair if task is not None]

    def take(self, count: int) -> Examples:
        """Return `count` questions, of training and of evaluations, and as many demonstrations of
        each data set. Raises UserError for a data set that is unknown."""
        tokenizer = None if self.dialect is None else self.dialect.tokenizer
        questions = run_async(self._questions(count))
        return Examples(questions, list(self._demonstrations(count)), tokenizer)

    async def _questions(self, count: int) -> list[QuestionExample]:
        return [await self._question(task) for task in self._tasks[:count]]

    async def _question(self, task: Task) -> QuestionExample:
        tried = [Trajectory(task, answer=self._read_back(text)) for text in self._answers(task)]
        await grade(self.correct, tried)
        prompt = None
        if self.dialect is not None:
            ids = self.dialect.prompt(task.question, Names(task, self.schemas).schemas)
            prompt = self.dialect.tokenizer.decode(ids)
        scores = dict(zip(self._answers(task), (t.right for t in tried), strict=True))
        return QuestionExample(task, prompt, recorded_as(self.recipe.correct, task), scores)

    def _answers(self, task: Task) -> list[str]:
        """Return a right answer, if one is known, and a wrong one: that of another question."""
        others = (gold for other in self._tasks for gold in other.answers[:1])
        wrong = next((gold for gold in others if gold not in task.answers), UNKNOWING)
        return [*task.answers[:1], wrong]

    def _read_back(self, text: str) -> str | None:
        return text if self.dialect is None else read_back(self.dialect, text)

    def _demonstrations(self, count: int) -> Iterator[DemonstrationExample]:
        if self.dialect is None:
            return
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for stage, settings in self.recipe.stages.items():
            if not isinstance(settings, Sft | Pairs):
                continue
            key = (settings.data, settings.trained_authors)
            name = f"{settings.data} (stage {stage})"
            if key not in seen:
                seen.add(key)
                trained = frozenset(map(Author, settings.trained_authors))
                kind = self._pairs if isinstance(settings, Pairs) else self._trajectories
                yield from kind(settings.data, name, trained, count)

    def _trajectories(
        self, data: str, name: str, trained: frozenset[Author], count: int
    ) -> Iterator[DemonstrationExample]:
        assert self.dialect is not None
        if not self.recipe.asks_files:
            for made in self.inputs.trajectories(data, count, self.dialect, self.schemas):
                yield DemonstrationExample(name, trained, made)
            return
        for each in self.inputs.shown(data, count, self.dialect, self.schemas):
            try:
                [made] = self.inputs.encoded([each], self.dialect, self.schemas)
                yield DemonstrationExample(name, trained, made)
            except UserError as error:
                yield DemonstrationExample(name, left_out=str(error))

    def _pairs(
        self, data: str, name: str, trained: frozenset[Author], count: int
    ) -> Iterator[DemonstrationExample]:
        assert self.dialect is not None
        for pair in self.inputs.pairs(data, count, self.dialect, self.schemas):
            for side, trajectory in zip(("chosen", "rejected"), pair, strict=True):
                yield DemonstrationExample(f"{name}, {side}", trained, trajectory)


def read_back(dialect: Dialect, answer: str) -> str | None:
    """Return an answer as it is read from the text in which a policy gives it; None where it is
    lost."""
    written = dialect.tokenizer.decode(encode_turn(dialect, [], dialect.write_answer(answer)))
    read = dialect.parse([written])
    return read.text if isinstance(read, Answer) else None
