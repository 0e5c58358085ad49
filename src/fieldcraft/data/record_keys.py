"""Normalisation of published records to one question each, under the usual keys.

Paragraphs with several questions (SQuAD) are split, encrypted texts (BrowseComp) are decrypted, and
non-standard keys of questions, options and answers are replaced by the usual ones.
"""

from __future__ import annotations

import base64
import hashlib
import re
from itertools import cycle
from string import ascii_uppercase
from typing import Any

from fieldcraft.data.gold_answers import ANSWER_KEYS
from fieldcraft.data.literals import parse_list_items
from fieldcraft.data.multiple_choice import OPTION_KEYS
from fieldcraft.data.records import Record, RecordError, make_question_id
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


# -- answers under separate keys ---------------------------------------------------------------

# GPQA, SciQ and Open Trivia have correct and wrong answers under separate keys. They become options
# in an order determined by their texts alone: in file order, the correct one would always be first.

_CORRECT_KEY = re.compile(r"correct[\s_-]?answer", re.IGNORECASE)
_WRONG_KEY = re.compile(
    r"(?:(?:incorrect|wrong)[\s_-]?answers?|distractors?)[\s_-]?\d{0,2}", re.IGNORECASE
)
# Options that refer to the preceding options.
_CLOSING_OPTION = re.compile(r"(?:all|none|both|neither)\b.*\b(?:above|these)\b", re.IGNORECASE)


def merge_distractors(record: Record) -> Record:
    """Return a record with its correct and wrong answers as `options`, and the letter of the
    correct one as `answerKey`; return any other record unchanged. Raises RecordError if a wrong
    answer equals the correct one."""
    if any(record.get(key) for key in OPTION_KEYS):
        return record
    correct = [value for key, value in record.items() if _CORRECT_KEY.fullmatch(key.strip())]
    wrong = [
        text
        for key in record
        if _WRONG_KEY.fullmatch(key.strip())
        for text in _answer_texts(record[key])
    ]
    if len(correct) != 1 or len(correct_texts := _answer_texts(correct[0])) != 1 or not wrong:
        return record
    if correct_texts[0] in wrong:
        raise RecordError(
            "a wrong answer that equals the correct one",
            f"the answer {correct_texts[0]!r} is listed as correct and as wrong: correct"
            " or remove the record.",
        )
    options = sorted(
        {*correct_texts, *wrong},
        key=lambda text: (bool(_CLOSING_OPTION.match(text)), make_question_id(text)),
    )
    if len(options) > len(ascii_uppercase):
        raise RecordError(f"more than {len(ascii_uppercase)} options")
    lettered = dict(zip(ascii_uppercase, options, strict=False))
    others = {key: record[key] for key in record if not _is_answer_key(key)}
    return others | {
        "options": lettered,
        "answerKey": ascii_uppercase[options.index(correct_texts[0])],
    }


def _is_answer_key(key: str) -> bool:
    return bool(_CORRECT_KEY.fullmatch(key.strip()) or _WRONG_KEY.fullmatch(key.strip()))


def _answer_texts(value: Any) -> list[str]:
    """Return an answer, or a list of answers, which may be written as text, as texts without
    missing values."""
    listed = parse_list_items(value) if isinstance(value, str) else value
    given = listed if isinstance(listed, list) else [value]
    known = (item for item in given if isinstance(item, str | int | float) and item == item)
    return [text for item in known if (text := str(item).strip())]


# -- several questions in a record -------------------------------------------------------------


def split_questions(record: Record) -> list[Record]:
    """Return the questions of a SQuAD article, each with its title and paragraph, or any other
    record unchanged, as a single question. Raises RecordError for an invalid article."""
    match record.get("paragraphs"):
        case [{"qas": _}, *_] as paragraphs:
            title = record.get("title")
            return [
                {**question, "title": title, "context": paragraph.get("context")}
                for paragraph in paragraphs
                for question in _get_paragraph_questions(paragraph)
            ]
    return [record]


def _get_paragraph_questions(paragraph: object) -> list[Record]:
    match paragraph:
        case {"qas": list(questions)} if all(isinstance(each, dict) for each in questions):
            return questions
    raise RecordError(
        "a paragraph without questions",
        "a paragraph has no list of questions; write them as 'qas', or remove the record.",
    )


# -- encrypted records -------------------------------------------------------------------------

# In BrowseComp's file format (arXiv 2504.12516), each value is the base64 encoding of a text XORed
# with the repeated SHA-256 digest of the record's `canary` (as in OpenAI's simple-evals).


def decrypt_record(record: Record) -> Record:
    """Decrypt the texts of a BrowseComp record and set its topic as `level`; return any other
    record unchanged.

    Raises RecordError if the canary does not decrypt the texts.
    """
    if not {"problem", "answer", "canary"} <= record.keys():
        return record
    canary = str(record["canary"])
    try:
        problem, answer = (decrypt(str(record[key]), canary) for key in ("problem", "answer"))
    except ValueError as error:
        raise RecordError(
            "texts that the canary does not decrypt",
            "the canary does not decrypt the problem and the answer; give the file as it was"
            " published.",
        ) from error
    decrypted = record | {"problem": problem, "answer": answer}
    return decrypted | ({"level": record["problem_topic"]} if record.get("problem_topic") else {})


def decrypt(text: str, canary: str) -> str:
    """Return the decrypted text. Raises ValueError if decryption fails."""
    key = cycle(hashlib.sha256(canary.encode()).digest())
    secret = base64.b64decode(text, validate=True)
    return bytes(byte ^ mask for byte, mask in zip(secret, key, strict=False)).decode()
