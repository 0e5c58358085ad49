"""User-provided questions, passages and demonstrations as the data source of a run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from fieldcraft.config.hub_names import MODEL_FORMS
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.stages import RETRIEVED_DATASET
from fieldcraft.data.corpora import CorpusFile
from fieldcraft.data.decontamination import IN_EVALUATION
from fieldcraft.data.file_formats import read_any_demonstrations, read_any_pairs
from fieldcraft.data.grading import Grader
from fieldcraft.data.records import make_question_id
from fieldcraft.data.tasks import write_tasks
from fieldcraft.data.world import Demonstration
from fieldcraft.dialects.encoding import (
    DemonstrationEncoder,
    DemonstrationEncodingError,
    ToolSchemas,
    TrajectoryPair,
)
from fieldcraft.records.chains import count_max_chain_tokens
from fieldcraft.rewards.grading import resolve_reward_name
from fieldcraft.runs.build import make_verdict_reward
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.file_questions import FileQuestions, find_overlap_warnings
from fieldcraft.runs.sources import DataSource, count_encoding_errors
from fieldcraft.types import Answer, DemoStep, Task, ToolCall, Trajectory, UserError

DEMONSTRATIONS_DATASET, PAIRS_DATASET = "demonstrations", "pairs"  # data sets
UNGRADED_REASON = "with an answer that cannot be graded"
T = TypeVar("T")


class FileData(DataSource):
    """Data source of user-provided questions, passages and demonstrations."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.questions = FileQuestions(recipe)
        self._corpus = (
            None if recipe.corpus is None else CorpusFile(recipe.corpus, recipe.max_left_out)
        )
        self._verdicts: dict[str, bool | None] = {}  # of demonstrations, by hash
        tasks_key = "evaluation.tasks" if recipe.tasks is None else "tasks"
        if recipe.model is None and _needs_model(recipe):
            raise UserError(f"{tasks_key}=FILE needs a model: set model to {MODEL_FORMS}.")
        if recipe.has_search_tool and recipe.corpus is None and recipe.search.url is None:
            raise UserError(
                f"{tasks_key}=FILE needs corpus=FILE, or search.url= of a search server, for the"
                " tool search: give one of them, or tools= without search."
            )

    def write_files(self, folder: Path) -> None:
        if self._corpus is not None:
            corpus = self._corpus.ensure_passages(folder / "corpus.jsonl")
            if corpus != folder / "corpus.jsonl":
                (folder / "corpus.jsonl").symlink_to(corpus.resolve())
        write_tasks(self.evaluation_tasks(), folder / "evaluation.jsonl")
        write_tasks(self.train_tasks(), folder / "train.jsonl")

    def encoded(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[Trajectory]:
        """Return imported demonstrations with correct answers according to the run's verdict
        reward, in its dialect. Ungradable ones are trusted only if the recipe allows it."""
        usable, reasons = self.load_usable_demonstrations(encoder, dataset)
        subject = f"no demonstration of {self._find_dataset_file(dataset)}"
        return _require_examples(usable, reasons, subject)[:count]

    def _find_dataset_file(self, dataset: str) -> Path:
        """Return the file of a data set: the user's, or one that a step of the run has written."""
        path = self.dataset_files.get(dataset)
        if dataset == DEMONSTRATIONS_DATASET:
            path = self.recipe.demonstrations
        if path is None:
            raise UserError(
                f"data set '{dataset}' is unknown here: use dataset: demonstrations with"
                f" demonstrations=FILE, or dataset: {RETRIEVED_DATASET}."
            )
        return path

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        path = self._find_dataset_file(dataset)
        demonstrations, reasons, tasks = self._read_demonstrations(path)
        self.notes = self._make_notes(tasks, reasons, path)
        return demonstrations[:count]

    def encode_filtered(
        self, dataset: str, demonstrations: Sequence[Demonstration], encoder: DemonstrationEncoder
    ) -> list[Trajectory]:
        path = self._find_dataset_file(dataset)
        usable, reasons = self._select_usable(demonstrations, encoder, path)
        return _require_examples(usable, reasons, f"no filtered demonstration of {path}")

    def _make_notes(self, tasks: Sequence[Task], reasons: Counter[str], path: Path) -> list[str]:
        left_out = [f"{count} left out: {reason}" for reason, count in reasons.most_common()]
        return left_out + find_overlap_warnings(self.questions.evaluation_questions, tasks, path)

    def load_usable_demonstrations(
        self, encoder: DemonstrationEncoder, dataset: str = DEMONSTRATIONS_DATASET
    ) -> tuple[list[Trajectory], Counter[str]]:
        """Return the demonstrations for training, and the counts of rejected ones by reason."""
        path = self._find_dataset_file(dataset)
        read, unreadable, tasks = self._read_demonstrations(path)
        usable, unusable = self._select_usable(read, encoder, path)
        reasons = unreadable + unusable
        self.notes = [
            *self._make_notes(tasks, reasons, path),
            *note_unoffered_calls(read, encoder.schemas),
        ]
        return usable, reasons

    def _read_demonstrations(
        self, path: Path
    ) -> tuple[list[Demonstration], Counter[str], list[Task]]:
        """Return the demonstrations of questions that are not in an evaluation, the reasons for
        rejecting others, and the questions of both."""
        read, reasons = read_any_demonstrations(path, self.recipe.max_left_out)
        trainable = [
            demonstration
            for demonstration in read
            if demonstration[0] not in self.questions.evaluation_questions
        ]
        overlaps = Counter({IN_EVALUATION: len(read) - len(trainable)})
        return trainable, reasons + overlaps, [task for task, _ in read]

    def _select_usable(
        self, read: Sequence[Demonstration], encoder: DemonstrationEncoder, path: Path
    ) -> tuple[list[Trajectory], Counter[str]]:
        usable, reasons = [], Counter[str]()
        errors: list[DemonstrationEncodingError] = []
        for (task, steps), is_correct in zip(read, self._grade_demonstrations(read), strict=True):
            if is_correct is False:
                answered = bool(steps) and isinstance(steps[-1], Answer)
                reasons["with a wrong answer" if answered else "without an answer"] += 1
                continue
            if is_correct is None and self.recipe.ungraded == "drop":
                reasons[UNGRADED_REASON] += 1
                continue
            try:
                trajectory = encoder.encode(task, steps)
            except DemonstrationEncodingError as error:
                errors.append(error)
                continue
            if not trajectory.well_formed:
                reasons["not well-formed"] += 1
            elif count_max_chain_tokens(trajectory) > self.recipe.budget.max_context_tokens:
                reasons["longer than budget.max_context_tokens"] += 1
            else:
                usable.append(trajectory)
        max_share = self.recipe.max_left_out
        return usable, reasons + count_encoding_errors(path, errors, len(read), max_share)

    def _grade_demonstrations(
        self, read: Sequence[tuple[Task, Sequence[DemoStep]]]
    ) -> list[bool | None]:
        """Return the verdict on each demonstration. Verdicts are cached, because a run reads a file
        several times, and a judge or a sandbox is slow."""
        keys = [make_question_id(f"{task} {steps}") for task, steps in read]
        new = {
            key: demonstration
            for key, demonstration in zip(keys, read, strict=True)
            if key not in self._verdicts
        }
        if new:
            grader = Grader(self.verdict_reward or make_verdict_reward(self.recipe))

            async def grade_new() -> list[bool | None]:
                return await asyncio.gather(*(grader.grade(*each) for each in new.values()))

            self._verdicts |= zip(new, run_async(grade_new()), strict=True)
        return [self._verdicts[key] for key in keys]

    def pairs(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[TrajectoryPair]:
        """Return the pairs of the user's file, in the run's dialect."""
        if dataset != PAIRS_DATASET or self.recipe.pairs is None:
            raise UserError(
                f"data set '{dataset}' of pairs is unknown here: use dataset: pairs with"
                " pairs=FILE, as 'fieldcraft run autocoa-data' writes one."
            )
        usable, reasons = self.load_usable_pairs(encoder)
        return _require_examples(usable, reasons, f"no pair of {self.recipe.pairs}")[:count]

    def load_usable_pairs(
        self, encoder: DemonstrationEncoder
    ) -> tuple[list[TrajectoryPair], Counter[str]]:
        """Return the pairs for training, and the counts of rejected ones by reason. According to
        the run's verdict reward, a chosen answer must be correct, and a rejected one wrong."""
        assert self.recipe.pairs is not None
        usable: list[TrajectoryPair] = []
        read, reasons = read_any_pairs(self.recipe.pairs, self.recipe.max_left_out)
        trainable = [pair for pair in read if pair.task not in self.questions.evaluation_questions]
        reasons[IN_EVALUATION] += len(read) - len(trainable)
        chosen = self._grade_demonstrations([(pair.task, pair.chosen) for pair in trainable])
        rejected = self._grade_demonstrations([(pair.task, pair.rejected) for pair in trainable])
        for pair, *verdicts in zip(trainable, chosen, rejected, strict=True):
            branches = (pair.chosen, pair.rejected)
            has_answer = [
                isinstance(branch[-1], Answer) for branch in branches
            ]  # other alternatives have no verdict
            is_graded = (
                resolve_reward_name(self.recipe.verdict_reward, pair.task)
                not in self.deferred_graders
            )
            if is_graded and (
                (has_answer[0] and verdicts[0] is False) or (has_answer[1] and verdicts[1])
            ):
                reasons["that chooses a wrong answer or rejects a correct one"] += 1
                continue
            if None in verdicts and self.recipe.ungraded == "drop":
                reasons[UNGRADED_REASON] += 1
                continue
            try:
                sides = encoder.encode_pair(pair.task, pair.before, branches)
            except DemonstrationEncodingError as error:
                reasons[error.reason] += 1
                continue
            both = list(zip(sides, branches, strict=True))
            if not all(encoder.round_trips(side, branch[-1]) for side, branch in both):
                reasons[f"not as the dialect '{encoder.dialect.name}' reads it back"] += 1
            elif max(map(count_max_chain_tokens, sides)) > self.recipe.budget.max_context_tokens:
                reasons["longer than budget.max_context_tokens"] += 1
            else:
                usable.append(sides)
        tasks = [pair.task for pair in read]
        self.notes = self._make_notes(tasks, +reasons, self.recipe.pairs)
        return usable, +reasons

    def warnings(self) -> list[str]:
        return self.questions.warnings()

    def corpus_warnings(self) -> list[str]:
        return [] if self._corpus is None else self._corpus.warnings()

    def train_tasks(self) -> list[Task]:
        return list(self.questions.train)

    def test_tasks(self) -> list[Task]:
        return list(self.questions.test)


def _needs_model(recipe: Recipe) -> bool:
    """Return whether a run requires a model to start from."""
    if recipe.stages or (recipe.collect is None and recipe.select is None):
        return True
    return recipe.select is not None and bool(recipe.select.sampled_models)


def note_unoffered_calls(
    demonstrations: Sequence[tuple[Task, Sequence[DemoStep]]], tools: ToolSchemas
) -> list[str]:
    """Return a note on demonstrations that call tools missing from the run's prompts: a model would
    learn calls that its prompts do not describe."""
    offered = {tool["function"]["name"] for tool in tools}
    called = [
        {step.tool for step in steps if isinstance(step, ToolCall)} for _, steps in demonstrations
    ]
    unoffered = [min(names - offered) for names in called if names - offered]
    if not unoffered:
        return []
    return [
        f"{len(unoffered)} call tools that the run does not have, such as '{unoffered[0]}': add"
        " them to tools, or remove the demonstrations"
    ]


def _require_examples(examples: list[T], reasons: Counter[str], subject: str) -> list[T]:
    """Return `examples`, the usable ones. Raises UserError with the reasons if there are none."""
    if not examples:
        details = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        if reasons[IN_EVALUATION] > reasons.total() / 2:
            raise UserError(
                f"{subject} can be used ({details}): give some of other questions, or"
                " use fewer evaluation questions by setting evaluation.splits."
            )
        raise UserError(
            f"{subject} can be used ({details or 'it is empty'}): raise budget.max_context_tokens,"
            " set a judge or ungraded=trust for answers that cannot be graded, or give another"
            " file."
        )
    return examples
