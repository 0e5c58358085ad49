"""Examples of questions and demonstrations, shown before training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fieldcraft.types import Author, Task, Tokenizer, Trajectory


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """A question. `prompt` is the text that the model reads, or None if an external program writes
    it. `grader` is the reward that grades it. `scores` holds the verdicts on a correct and on a
    wrong answer, rendered and parsed by the dialect, or None if they cannot be determined."""

    task: Task
    prompt: str | None
    grader: str
    scores: Mapping[str, bool | None]


@dataclass(frozen=True, slots=True)
class DemonstrationExample:
    """A demonstration of a stage: the trajectory, in which tokens of `trained_authors` contribute
    to the loss, or the reason to leave it out. `name` identifies the data source."""

    name: str
    trained_authors: frozenset[Author] = frozenset()
    trajectory: Trajectory | None = None
    rejection_reason: str = ""


@dataclass(frozen=True, slots=True)
class DataExamples:
    """Examples of a run's data. `tokenizer` encodes its prompts; None without prompts."""

    questions: list[QuestionExample]
    demonstrations: list[DemonstrationExample]
    tokenizer: Tokenizer | None
