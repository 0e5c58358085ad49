"""Examples of questions and demonstrations, as they are shown before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fieldcraft.types import Author, Task, Tokenizer, Trajectory


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """A question. `prompt` is the text that the model reads, None where others write it. `grader`
    names the reward that grades it. `scores` has the verdict on a right answer and on a wrong one,
    as they are read back from the dialect; None: nothing here can tell."""

    task: Task
    prompt: str | None
    grader: str
    scores: Mapping[str, bool | None]


@dataclass(frozen=True, slots=True)
class DemonstrationExample:
    """A demonstration of a stage: the trajectory whose tokens by `trained_authors` carry loss, or
    the reason why it is left out. `name` says of which data it is."""

    name: str
    trained_authors: frozenset[Author] = frozenset()
    trajectory: Trajectory | None = None
    rejection_reason: str = ""


@dataclass(frozen=True, slots=True)
class DataExamples:
    """Examples of a run's data. `tokenizer` is that of its prompts, None where there are none."""

    questions: list[QuestionExample]
    demonstrations: list[DemonstrationExample]
    tokenizer: Tokenizer | None
