"""Requests to a served agent and the feedback of its users, as data for a run.

    FOLDER/trajectories.jsonl     every request, as a trajectory
    FOLDER/demonstrations.jsonl   the same as text steps (`steps_io.py`), without gold answers
    FOLDER/feedback.jsonl         {"id", "score" from 0 to 1, "answer", "comment"}

All three are journals: lines are only appended. The gold answer of a question is the answer that
the user gave, or the agent's answer if the user scored it 1. The latest feedback on a request
counts.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from fieldcraft.config.numbers import UnitFraction
from fieldcraft.data.steps_io import read_demonstrations
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.tools.server_requests import RequestBody
from fieldcraft.types import Answer, DemoStep, Task, UserError

TRAJECTORIES_FILE = "trajectories.jsonl"
DEMONSTRATIONS_FILE = "demonstrations.jsonl"
FEEDBACK_FILE = "feedback.jsonl"


class UserFeedback(RequestBody):
    """Feedback of a user on an answer. Raises pydantic's ValidationError."""

    model_config = ConfigDict(extra="forbid")

    id: str
    score: UnitFraction | None = None
    answer: Annotated[str, Field(min_length=1)] | None = None
    comment: str | None = None


def is_request_log(path: Path) -> bool:
    """Return whether a path is the request log folder of a served agent."""
    return (path / TRAJECTORIES_FILE).exists() and (path / DEMONSTRATIONS_FILE).exists()


def read_log_tasks(folder: Path) -> list[Task]:
    """Return the questions with a known correct answer, each once, with its latest feedback.

    Raises UserError if there are none, or a file is missing or damaged.
    """
    tasks = {t.question: t for t, _ in _join_feedback(folder) if t is not None and t.answers}
    if not tasks:
        raise UserError(
            f"{folder} holds no question whose correct answer is known: give some of its requests a"
            " score of 1 or an answer, by POST /v1/feedback."
        )
    return list(tasks.values())


def read_log_demonstrations(
    folder: Path,
) -> tuple[list[tuple[Task, list[DemoStep]]], Counter[str]]:
    """Return the requests with a known correct answer as demonstrations, and counts of reasons for
    which others were left out: only these can be graded. Raises UserError for missing or damaged
    files."""
    accepted, reasons = list[tuple[Task, list[DemoStep]]](), Counter[str]()
    for task, steps in _join_feedback(folder):
        if task is None:
            reasons["without feedback"] += 1
        elif not task.answers:
            reasons["with a score below 1"] += 1
        else:
            accepted.append((task, steps))
    return accepted, reasons


def _join_feedback(folder: Path) -> list[tuple[Task | None, list[DemoStep]]]:
    """Return the steps of each request, and its task with the gold answer of its user, or None
    without feedback."""
    feedback_by_id = {feedback.id: feedback for feedback in _read_feedback(folder / FEEDBACK_FILE)}
    return [
        (
            _add_gold_answer(task, steps, feedback_by_id[task.id])
            if task.id in feedback_by_id
            else None,
            steps,
        )
        for task, steps in read_demonstrations(folder / DEMONSTRATIONS_FILE)
    ]


def _add_gold_answer(task: Task, steps: list[DemoStep], feedback: UserFeedback) -> Task:
    answer = feedback.answer
    if answer is None and feedback.score == 1 and steps and isinstance(steps[-1], Answer):
        answer = steps[-1].text
    return Task(task.id, task.question, () if answer is None else (answer,), task.meta)


def _read_feedback(path: Path) -> list[UserFeedback]:
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        with raise_read_errors(f"{path}, line {number}", "correct the line"):
            found.append(UserFeedback.model_validate_json(line))
    return found
