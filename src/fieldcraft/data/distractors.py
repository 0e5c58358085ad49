"""Questions with correct and wrong answers under separate keys: GPQA, SciQ, Open Trivia.

The answers become options in an order determined by their texts alone: in file order, the correct
one would always be the first.
"""

from __future__ import annotations

import re
from string import ascii_uppercase
from typing import Any

from fieldcraft.data.literals import parse_list_items
from fieldcraft.data.multiple_choice import OPTION_KEYS
from fieldcraft.data.records import Record, RecordError, make_question_id

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
