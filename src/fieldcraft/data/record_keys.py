"""Questions under keys of their own, as some data sets are published, under the usual keys."""

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

# How a question begins whose answer is yes or no.
_YES_NO_START = re.compile(
    r"\s*(?:is|are|was|were|am|do|does|did|has|have|had|can|could|will|would|shall|should|may|might"
    r"|must)\b",
    re.IGNORECASE,
)


def normalise_record(record: Record) -> Record:
    """Return a record with its question and answers under the usual keys, beside its own ones: keys
    in capitals also in small letters, options in columns or in a right answer and wrong ones as
    `options`, and those of SuperGLUE's BoolQ, KILT and Open-Reasoner-Zero. Any other one is as it
    is. Raises RecordError for one that may mean several things."""
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
        }:  # of Open-Reasoner-Zero
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
                f"keys that differ in capitals alone, such as '{key}'",
                f"it has the key '{lowercase}' twice, in other capitals: keep one of them.",
            )
        found[lowercase] = value
    return record | found if found else record


def _has_answer(record: Record) -> bool:
    """Tell whether something else than a label may say the answer, or what the label names."""
    return bool(record.keys() & {*ANSWER_KEYS, *OPTION_KEYS, "reward_model"})


def _parse_truth_label(question: str, label: int) -> bool:
    """Return the answer that a label is. A label beside any other question may say that the passage
    is one that answers it."""
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
