"""Normalisation of records with non-standard keys to the usual keys."""

from __future__ import annotations

import re
from string import ascii_uppercase
from typing import Any

from fieldcraft.data.distractors import merge_distractors
from fieldcraft.data.gold_answers import ANSWER_KEYS
from fieldcraft.data.multiple_choice import OPTION_KEYS
from fieldcraft.data.records import Record, RecordError
from fieldcraft.records.meta import GRADED_BY_KEY
from fieldcraft.rewards.grading import MATH

# Start of a yes/no question.
_YES_NO_START = re.compile(
    r"\s*(?:is|are|was|were|am|do|does|did|has|have|had|can|could|will|would|shall|should|may|might"
    r"|must)\b",
    re.IGNORECASE,
)
_OPTION_COLUMN_NAME = re.compile(
    r"(?P<letter>[A-Z])"
    r"|(?P<family>(?i:option|choice|opt|op))[\s_.-]*(?:(?P<of_it>[A-Za-z])|(?P<number>\d))"
)
_MISSING_VALUES = (None, "")


def normalise_record(record: Record) -> Record:
    """Return a record with its question and answers under the usual keys, in addition to its own
    keys. Capitalised keys are added in lower case; options in columns, or as correct and wrong
    answers, as `options`. SuperGLUE's BoolQ, KILT and Open-Reasoner-Zero are converted. Other
    records are unchanged. Raises RecordError for an ambiguous record."""
    record = _add_lowercase_keys(merge_distractors(_merge_option_columns(record)))
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


def _merge_option_columns(record: Record) -> Record:
    """Return a record with its options as `options`, keyed by letter or number, if columns hold
    them: A to D, `option_a`, `opa`, `option1`, `choice_1` and the like, as in C-Eval and tables of
    MMLU. Any other record is returned unchanged."""
    if any(record.get(key) for key in OPTION_KEYS):
        return record
    families: dict[tuple[str, bool], dict[str, str]] = {}
    for key in record:
        if found := _OPTION_COLUMN_NAME.fullmatch(key.strip()):
            name = found["number"] or (found["letter"] or found["of_it"]).upper()
            family = ((found["family"] or "").casefold(), name.isdecimal())
            families.setdefault(family, {})[name] = key
    for columns in families.values():
        options = {name: record[columns[name]] for name in sorted(columns)}
        filled = {name: text for name, text in options.items() if text not in _MISSING_VALUES}
        if _are_consecutive(list(options)) and len(filled) > 1:
            return record | {"options": filled}
    return record


def _are_consecutive(names: list[str]) -> bool:
    """Return whether names are those of consecutive options: A, B, C, or 1, 2, or 0, 1."""
    return "".join(names) in (
        ascii_uppercase[: len(names)],
        "123456789"[: len(names)],
        "0123456789"[: len(names)],
    )


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
