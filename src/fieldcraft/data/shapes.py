"""Questions under keys of their own, as some data sets are published, under the usual keys."""

from __future__ import annotations

import re
from typing import Any

from fieldcraft.data.distractors import with_distractors
from fieldcraft.data.gold_answers import ANSWERS
from fieldcraft.data.option_columns import with_columns
from fieldcraft.data.options import OPTIONS
from fieldcraft.data.records import Malformed, Record
from fieldcraft.records.meta import GRADED_BY
from fieldcraft.rewards.grading import MATH

# How a question begins whose answer is yes or no.
_YES_OR_NO = re.compile(
    r"\s*(?:is|are|was|were|am|do|does|did|has|have|had|can|could|will|would|shall|should|may|might"
    r"|must)\b",
    re.IGNORECASE,
)


def usual_record(record: Record) -> Record:
    """Return a record with its question and answers under the usual keys, beside its own ones: keys
    in capitals also in small letters, options in columns or in a right answer and wrong ones as
    `options`, and those of SuperGLUE's BoolQ, KILT and Open-Reasoner-Zero. Any other one is as it
    is. Raises Malformed for one that may mean several things."""
    record = _with_small_letters(with_distractors(with_columns(record)))
    match record:
        case {"question": str(question), "passage": str(), "label": 0 | 1 as label}:
            return record if _is_answered(record) else record | {"answer": _truth(question, label)}
        case {"input": str(question), "output": [{"answer": _} | {"provenance": _}, *_] as found}:
            return record | _of_kilt(question, found)
        case {
            "conversations": [
                {"from": "human", "value": str(question)},
                {"from": "assistant", "ground_truth": {"value": answer}},
            ]
        }:  # of Open-Reasoner-Zero
            plain = {key: value for key, value in record.items() if key != "conversations"}
            return plain | {"question": question, "golden_answers": [answer], GRADED_BY: MATH}
    return record


def _with_small_letters(record: Record) -> Record:
    found: Record = {}
    for key, value in record.items():
        small = key.lower()
        if small in record:
            continue
        if small in found and found[small] != value:
            raise Malformed(
                f"keys that differ in capitals alone, such as '{key}'",
                f"it has the key '{small}' twice, in other capitals: keep one of them.",
            )
        found[small] = value
    return record | found if found else record


def _is_answered(record: Record) -> bool:
    """Tell whether something else than a label may say the answer, or what the label names."""
    return bool(record.keys() & {*ANSWERS, *OPTIONS, "reward_model"})


def _truth(question: str, label: int) -> bool:
    """Return the answer that a label is. A label beside any other question may say that the passage
    is one that answers it."""
    if _YES_OR_NO.match(question):
        return bool(label)
    raise Malformed(
        "a 'label' that is no answer",
        "nobody can tell what 'label' says, as the question is none of yes or no: write the answer"
        " as 'answer'.",
    )


def _of_kilt(question: str, found: list[Any]) -> Record:
    outputs = [each for each in found if isinstance(each, dict)]
    answers = [each["answer"] for each in outputs if each.get("answer")]
    sources = [source for each in outputs for source in each.get("provenance") or ()]
    titles = [s["title"] for s in sources if isinstance(s, dict) and s.get("title")]
    facts = {"supporting_facts": {"title": titles}} if titles else {}
    return {"question": question, "golden_answers": answers, **facts}
