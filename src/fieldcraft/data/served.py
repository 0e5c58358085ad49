"""Requests that a served agent answered, and what its users said of them: data for a run.

    FOLDER/trajectories.jsonl     every request, as a trajectory
    FOLDER/demonstrations.jsonl   the same as steps of text (`steps_io.py`), without gold answers
    FOLDER/feedback.jsonl         {"id", "score" from 0 to 1, "answer", "comment"}

All three are journals: lines are only appended. A user's own answer is the gold answer of a
question, and so is the agent's where the user gave it the score 1. The last word on a request
counts.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from fieldcraft.data.steps_io import read_demonstrations
from fieldcraft.records.reading import reading
from fieldcraft.tools.bodies import RequestBody
from fieldcraft.types import Answer, Step, Task, UserError

TRAJECTORIES = "trajectories.jsonl"
DEMONSTRATIONS = "demonstrations.jsonl"
FEEDBACK = "feedback.jsonl"


class Feedback(RequestBody):
    """Verdict of a user on an answer. Raises pydantic's ValidationError."""

    model_config = ConfigDict(extra="forbid")

    id: str
    score: Annotated[float, Field(ge=0, le=1)] | None = None
    answer: Annotated[str, Field(min_length=1)] | None = None
    comment: str | None = None


def is_served(path: Path) -> bool:
    """Return whether a path is the folder of a served agent."""
    return (path / TRAJECTORIES).exists() and (path / DEMONSTRATIONS).exists()


def served_tasks(folder: Path) -> list[Task]:
    """Return the questions whose right answer is known, each once: the last word on a question
    counts.

    Raises UserError if there are none, or a file is missing or damaged.
    """
    tasks = {t.question: t for t, _ in _with_feedback(folder) if t is not None and t.answers}
    if not tasks:
        raise UserError(
            f"{folder} holds no question whose right answer is known: give some of its requests a"
            " score of 1 or an answer, by POST /v1/feedback."
        )
    return list(tasks.values())


def served_demonstrations(
    folder: Path,
) -> tuple[list[tuple[Task, list[Step]]], Counter[str]]:
    """Return the requests as demonstrations, and how many others were left out for which reason:
    only those whose right answer is known can be judged. Raises UserError for missing or damaged
    files."""
    kept, reasons = list[tuple[Task, list[Step]]](), Counter[str]()
    for task, steps in _with_feedback(folder):
        if task is None:
            reasons["without feedback"] += 1
        elif not task.answers:
            reasons["with a score below 1"] += 1
        else:
            kept.append((task, steps))
    return kept, reasons


def _with_feedback(folder: Path) -> list[tuple[Task | None, list[Step]]]:
    """Return each request's task with the gold answers that its user knows; None without
    feedback."""
    said = {feedback.id: feedback for feedback in _read_feedback(folder / FEEDBACK)}
    return [
        (_judged(task, steps, said[task.id]) if task.id in said else None, steps)
        for task, steps in read_demonstrations(folder / DEMONSTRATIONS)
    ]


def _judged(task: Task, steps: list[Step], feedback: Feedback) -> Task:
    right = feedback.answer
    if right is None and feedback.score == 1 and steps and isinstance(steps[-1], Answer):
        right = steps[-1].text
    return Task(task.id, task.question, () if right is None else (right,), task.meta)


def _read_feedback(path: Path) -> list[Feedback]:
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        with reading(f"{path}, line {number}", "correct the line"):
            found.append(Feedback.model_validate_json(line))
    return found
