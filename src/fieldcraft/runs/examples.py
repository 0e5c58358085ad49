"""Examples from a run's data, as prompted, graded and trained.

`fieldcraft check --show` prints them, and a run writes a page with them next to its report.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from fieldcraft.config.recipe import Recipe
from fieldcraft.config.stages import Contrastive, Sft
from fieldcraft.dialects.encoding import DemonstrationEncoder, encode_turn
from fieldcraft.dialects.tool_names import ToolNameMap
from fieldcraft.rewards.grading import resolve_reward_name
from fieldcraft.rewards.verdict import grade_verdicts
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.sources import DataSource
from fieldcraft.terminal.examples import DataExamples, DemonstrationExample, QuestionExample
from fieldcraft.types import Answer, Author, Dialect, Reward, Task, Trajectory, UserError

PAGE_EXAMPLES = 3  # examples on the page of a run
WRONG_ANSWER = "I do not know"  # used if no other question has an answer


@dataclass(frozen=True)
class ExampleSource:
    """Source of examples. `verdict_reward` grades them. Without an encoder, as for a collection
    from a teacher or an external environment, there are no prompts and no demonstrations."""

    recipe: Recipe
    data_source: DataSource
    verdict_reward: Reward
    encoder: DemonstrationEncoder | None = None

    @cached_property
    def _tasks(self) -> list[Task]:
        """Training and evaluation questions, alternating."""
        pairs = zip_longest(self.data_source.train_tasks(), self.data_source.evaluation_tasks())
        return [task for pair in pairs for task in pair if task is not None]

    def take(self, count: int) -> DataExamples:
        """Return `count` training and evaluation questions, and the same number of demonstrations
        of each data set. Raises UserError for an unknown data set."""
        questions = run_async(self._make_questions(count))
        if self.encoder is None:
            return DataExamples(questions, [], None)
        demonstrations = list(self._make_demonstrations(count, self.encoder))
        return DataExamples(questions, demonstrations, self.encoder.dialect.tokenizer)

    async def _make_questions(self, count: int) -> list[QuestionExample]:
        return [await self._make_question(task) for task in self._tasks[:count]]

    async def _make_question(self, task: Task) -> QuestionExample:
        attempts = [
            Trajectory(task, answer=self._round_trip(text)) for text in self._trial_answers(task)
        ]
        await grade_verdicts(self.verdict_reward, attempts)
        prompt = None
        if self.encoder is not None:
            dialect, names = self.encoder.dialect, ToolNameMap(task, self.encoder.schemas)
            prompt = dialect.tokenizer.decode(dialect.encode_prompt(task.question, names.schemas))
        scores = dict(zip(self._trial_answers(task), (t.is_correct for t in attempts), strict=True))
        return QuestionExample(
            task, prompt, resolve_reward_name(self.recipe.verdict_reward, task), scores
        )

    def _trial_answers(self, task: Task) -> list[str]:
        """Return a correct answer, if known, and a wrong one: the answer of another question."""
        others = (gold for other in self._tasks for gold in other.answers[:1])
        wrong = next((gold for gold in others if gold not in task.answers), WRONG_ANSWER)
        return [*task.answers[:1], wrong]

    def _round_trip(self, text: str) -> str | None:
        return text if self.encoder is None else round_trip_answer(self.encoder.dialect, text)

    def _make_demonstrations(
        self, count: int, encoder: DemonstrationEncoder
    ) -> Iterator[DemonstrationExample]:
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for stage, settings in self.recipe.stages.items():
            if not isinstance(settings, Sft | Contrastive):
                continue
            key = (settings.dataset, settings.trained_authors)
            name = f"{settings.dataset} (stage {stage})"
            if key not in seen:
                seen.add(key)
                trained = frozenset(map(Author, settings.trained_authors))
                make = (
                    self._from_pairs
                    if isinstance(settings, Contrastive)
                    else self._from_trajectories
                )
                yield from make(settings.dataset, name, trained, count, encoder)

    def _from_trajectories(
        self,
        data: str,
        name: str,
        trained: frozenset[Author],
        count: int,
        encoder: DemonstrationEncoder,
    ) -> Iterator[DemonstrationExample]:
        if not self.recipe.has_task_files:
            for trajectory in self.data_source.encoded(data, count, encoder):
                yield DemonstrationExample(name, trained, trajectory)
            return
        for demonstration in self.data_source.demonstrations(data, count):
            try:
                [trajectory] = self.data_source.encode_filtered(data, [demonstration], encoder)
                yield DemonstrationExample(name, trained, trajectory)
            except UserError as error:
                yield DemonstrationExample(name, rejection_reason=str(error))

    def _from_pairs(
        self,
        data: str,
        name: str,
        trained: frozenset[Author],
        count: int,
        encoder: DemonstrationEncoder,
    ) -> Iterator[DemonstrationExample]:
        for pair in self.data_source.pairs(data, count, encoder):
            for side, trajectory in zip(("chosen", "rejected"), pair, strict=True):
                yield DemonstrationExample(f"{name}, {side}", trained, trajectory)


def round_trip_answer(dialect: Dialect, answer: str) -> str | None:
    """Return an answer as parsed back from a rendered policy turn; None if it is lost."""
    text = dialect.tokenizer.decode(encode_turn(dialect, [], dialect.render_answer(answer)))
    parsed = dialect.parse([text])
    return parsed.text if isinstance(parsed, Answer) else None
