"""Normalisation of records with non-standard keys to the usual keys."""

from __future__ import annotations

import re
from typing import Any

from fieldcraft.data.distractors import merge_distractors
from fieldcraft.data.gold_answers import ANSWER_KEYS
from fieldcraft.data.multiple_choice import OPTION_KEYS
from fieldcraft.data.option_columns import merge_option_columns
from fieldcraft.data.records import Record, RecordError
from fieldcraft.records.meta import GRADED_BY_KEY
from fieldcraft.rewards.grading import MATH

# Start of a yes/no question.
_YES_NO_START = re.compile(
    r"\s*(?:is|are|was|were|am|do|does|did|has|have|had|can|could|will|would|shall|should|may|might"
    r"|must)\b",
    re.IGNORECASE,
)


def normalise_record(record: Record) -> Record:
    """Return a record with its question and answers under the usual keys, in addition to its own
    keys. Capitalised keys are added in lower case; options in columns, or as correct and wrong
    answers, as `options`. SuperGLUE's BoolQ, KILT and Open-Reasoner-Zero are converted. Other
    records are unchanged. Raises RecordError for an ambiguous record."""
    record = _add_lowercase_keys(merge_distractors(merge_option_columns(record)))
    match record:
        case {"question": str(question), "passage": str(), "label": 0 | 1 as label}:
            return (
                record
                if _has_answer(record)
                else record | {"answer": _parse_truth_label(question, label)}
            )
        case {"input": str(question), "output": [{"answer": _} | {"provenance": _}, *_] as found}:
            return record | _parse_kilt(question, found)
        case {
            "conversations": [
                {"from": "human", "value": str(question)},
                {"from": "assistant", "ground_truth": {"value": answer}},
            ]
        }:  # Open-Reasoner-Zero
            plain = {key: value for key, value in record.items() if key != "conversations"}
            return plain | {"question": question, "golden_answers": [answer], GRADED_BY_KEY: MATH}
    return record


def _add_lowercase_keys(record: Record) -> Record:
    found: Record = {}
    for key, value in record.items():
        lowercase = key.lower()
        if lowercase in record:
            continue
        if lowercase in found and found[lowercase] != value:
            raise RecordError(
                f"keys that differ only in case, such as '{key}'",
                f"it has the key '{lowercase}' twice, in different case: keep one of them.",
            )
        found[lowercase] = value
    return record | found if found else record


def _has_answer(record: Record) -> bool:
    """Return whether a key other than the label may hold the answer, or what the label indexes."""
    return bool(record.keys() & {*ANSWER_KEYS, *OPTION_KEYS, "reward_model"})


def _parse_truth_label(question: str, label: int) -> bool:
    """Return the answer that a label represents. For other questions, the label may state whether
    the passage answers them."""
    if _YES_NO_START.match(question):
        return bool(label)
    raise RecordError(
        "a 'label' that is not an answer",
        "the meaning of 'label' is ambiguous, because the question is not a yes/no question: write"
        " the answer as 'answer'.",
    )


def _parse_kilt(question: str, found: list[Any]) -> Record:
    outputs = [each for each in found if isinstance(each, dict)]
    answers = [each["answer"] for each in outputs if each.get("answer")]
    sources = [source for each in outputs for source in each.get("provenance") or ()]
    titles = [s["title"] for s in sources if isinstance(s, dict) and s.get("title")]
    facts = {"supporting_facts": {"title": titles}} if titles else {}
    return {"question": question, "golden_answers": answers, **facts}
