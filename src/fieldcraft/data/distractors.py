"""Questions with a right answer and wrong ones under keys of their own: GPQA, SciQ, Open Trivia.

The answers become options in an order that follows from their texts alone: as they are written, the
right one would always be the first.
"""

from __future__ import annotations

import re
from string import ascii_uppercase
from typing import Any

from fieldcraft.data.options import OPTIONS
from fieldcraft.data.records import Malformed, Record, hash_of
from fieldcraft.data.written import items_in

_RIGHT = re.compile(r"correct[\s_-]?answer", re.IGNORECASE)
_WRONG = re.compile(
    r"(?:(?:incorrect|wrong)[\s_-]?answers?|distractors?)[\s_-]?\d{0,2}", re.IGNORECASE
)
# Options that speak of those before them.
_CLOSING = re.compile(r"(?:all|none|both|neither)\b.*\b(?:above|these)\b", re.IGNORECASE)


def with_distractors(record: Record) -> Record:
    """Return a record with its right and its wrong answers as `options`, and the letter of the
    right one as `answerKey`; any other record as it is. Raises Malformed where a wrong answer is
    the right one."""
    if any(record.get(key) for key in OPTIONS):
        return record
    right = [value for key, value in record.items() if _RIGHT.fullmatch(key.strip())]
    wrong = [
        text for key in record if _WRONG.fullmatch(key.strip()) for text in _texts(record[key])
    ]
    if len(right) != 1 or len(own := _texts(right[0])) != 1 or not wrong:
        return record
    if own[0] in wrong:
        raise Malformed(
            "a wrong answer that is the right one",
            f"the answer {own[0]!r} is called right and wrong: correct or remove the record.",
        )
    options = sorted({*own, *wrong}, key=lambda text: (bool(_CLOSING.match(text)), hash_of(text)))
    named = dict(zip(ascii_uppercase, options, strict=False))
    plain = {key: record[key] for key in record if not _names_answers(key)}
    return plain | {"options": named, "answerKey": ascii_uppercase[options.index(own[0])]}


def _names_answers(key: str) -> bool:
    return bool(_RIGHT.fullmatch(key.strip()) or _WRONG.fullmatch(key.strip()))


def _texts(value: Any) -> list[str]:
    """Return an answer, or several in a list, which may be written as text, as texts; nothing of
    what is missing."""
    listed = items_in(value) if isinstance(value, str) else value
    given = listed if isinstance(listed, list) else [value]
    known = (one for one in given if isinstance(one, str | int | float) and one == one)
    return [text for one in known if (text := str(one).strip())]
