"""Answers with human verdicts: files on which a judge is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldcraft.config.names import format_short
from fieldcraft.data.gold_answers import find_accepted_answers
from fieldcraft.data.records import Record, RecordError, first_filled, read_records
from fieldcraft.types import Task, UserError

EVOUNA_MODELS = ("fid", "gpt35", "chatgpt", "gpt4", "newbing")
ANSWER_KEYS = ("response", "prediction", "model_answer")
LABEL_KEYS = ("label", "verdict", "correct")
GOLD_KEYS = ("answers", "golden_answers", "golds", "answer")
LABELS: Mapping[Any, bool] = {
    **dict.fromkeys(("correct", "yes", "true", "1", "1.0", "accepted"), True),
    **dict.fromkeys(("incorrect", "no", "false", "0", "0.0", "rejected", "wrong"), False),
}


@dataclass(frozen=True)
class LabelledAnswer:
    """Answer to a question, and whether people accept it. `source` names the model that wrote it,
    "" if unknown."""

    task: Task
    answer: str
    accepted: bool
    source: str = ""


def read_labelled_answers(path: Path, limit: int | None = None) -> list[LabelledAnswer]:
    """Return the labelled answers to the first `limit` usable questions of a file.

    A record has `question`, `response` and `label` (true or false, 1 or 0, correct or incorrect),
    and optionally accepted `answers` and the `model` that wrote the response; or it is one of
    EVOUNA (Wang et al. 2023), with the answers of five models. There, questions that its authors
    call improper, missing answers, and answers without a verdict are left out.

    Raises UserError for a file that cannot be read, a record without one of these keys, or another
    label.
    """
    found: list[LabelledAnswer] = []
    num_questions = 0
    for location, record in read_records(path):
        if limit is not None and num_questions >= limit:
            break
        if isinstance(record, RecordError):
            raise UserError(f"{path}: {location} cannot be read ({record}): correct it.")
        part = list(_read_record(record, location))
        num_questions += bool(part)
        found += part
    if not found:
        raise UserError(f"{path} has no labelled answer: give a file with some.")
    return found


def _read_record(record: Record, location: str) -> Iterator[LabelledAnswer]:
    question = record.get("question")
    if "golden_answer" in record and any(f"judge_{model}" in record for model in EVOUNA_MODELS):
        improper = first_filled(record, ("improper",))
        if improper is None or not _parse_label(improper, location):
            yield from _read_evouna(record, location)
        return
    answer, label = first_filled(record, ANSWER_KEYS), first_filled(record, LABEL_KEYS)
    if not isinstance(question, str) or not isinstance(answer, str | int | float) or label is None:
        raise UserError(
            f"{location} is no labelled answer: give it the keys question, response and label."
        )
    accepted = _parse_label(label, location)
    try:
        golds = find_accepted_answers({"golden_answers": first_filled(record, GOLD_KEYS)})
    except RecordError as error:
        raise UserError(f"{location}: {error.message}") from error
    # Answers to one question have one id, so that they count as related.
    yield LabelledAnswer(
        Task(question, question, golds), str(answer), accepted, str(record.get("model") or "")
    )


def _parse_label(label: Any, location: str) -> bool:
    """Return the verdict that a label states, which is text in a table. Raises UserError for any
    other value."""
    accepted = LABELS.get(str(label).strip().lower())
    if accepted is None:
        raise UserError(
            f"the label {format_short(label)} of {location} is no verdict: write true or false."
        )
    return accepted


def _read_evouna(record: Record, location: str) -> Iterator[LabelledAnswer]:
    question, golds = record.get("question"), record["golden_answer"]
    if not isinstance(question, str) or not isinstance(golds, str):
        raise UserError(
            f"{location} is no record of EVOUNA: question and golden_answer must be text."
        )
    task = Task(location, question, tuple(golds.split("/")))
    for model in EVOUNA_MODELS:
        answer = first_filled(record, (f"answer_{model}",))
        verdict = first_filled(record, (f"judge_{model}",))
        if answer is not None and verdict is not None:
            yield LabelledAnswer(task, str(answer), _parse_label(verdict, location), model)
