"""Numbers in words: "twelve", "twenty-one", "1 million", "2.5 billion"."""

from __future__ import annotations

import re
from decimal import Decimal

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_VALUES = {word: value for value, word in enumerate(_SMALL)}
_VALUES |= {word: 10 * ten for ten, word in enumerate(_TENS, start=2)}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALES |= {"lakh": 10**5, "crore": 10**7}

_DIGITS = frozenset(_SMALL[1:10])
_BEFORE_AND = frozenset({"hundred", *_SCALES})
_ONE = re.compile(rf"\Aa (?={'|'.join(sorted(_BEFORE_AND))})")
_SCALED = re.compile(
    r"(?<![\w.,/^}\\])(?P<number>\d[\d,_]*(?:\.\d+)?)(?:\s|\\[ ,;]|~)*(?:\\text\s*\{\s*)?"
    rf"(?P<scale>{'|'.join(_SCALES)})\b(?:\s*\}})?",
    re.IGNORECASE,
)
_SPELT = re.compile(r"(?:\\text\s*)?\{(?P<words>\s*[A-Za-z][A-Za-z\s-]*)\}")


def in_digits(text: str) -> str:
    """Return a text in which numbers with a word of scale, as 1 million, are written out, and a
    number in words alone, as twenty-one."""
    text = _SPELT.sub(_in_braces, _SCALED.sub(_written_out, text))
    value = value_of_words(text)
    return text if value is None else str(value)


def _written_out(found: re.Match[str]) -> str:
    number = Decimal(re.sub("[,_]", "", found["number"]))
    return f"{(number * _SCALES[found['scale'].lower()]).normalize():f}"


def _in_braces(found: re.Match[str]) -> str:
    value = value_of_words(found["words"])
    return found[0] if value is None else f"{{{value}}}"


def value_of_words(text: str) -> int | None:
    """Return the whole number that words say, None for any other text."""
    text = _ONE.sub("one ", text.strip().lower().removesuffix("."))
    sign = -1 if text.startswith("minus ") else 1
    words = re.split(r"[-\s]+", text.removeprefix("minus "))
    joined = [i for i, word in enumerate(words) if word == "and"]
    if any(i == 0 or words[i - 1] not in _BEFORE_AND for i in joined):
        return None
    value = _value([word for word in words if word != "and"])
    return None if value is None else sign * value


def _value(words: list[str]) -> int | None:
    """Return the number that words say. What follows a word of scale is less than that scale."""
    scales = [word for word in words if word in _SCALES]
    if not scales:
        return _below_thousand(words)
    place = words.index(max(scales, key=lambda word: _SCALES[word]))
    factor = _SCALES[words[place]]
    many = _below_thousand(words[:place])
    rest = _value(words[place + 1 :]) if words[place + 1 :] else 0
    return None if many is None or rest is None or rest >= factor else many * factor + rest


def _below_thousand(words: list[str]) -> int | None:
    match words:
        case [digit, "hundred"] if digit in _DIGITS:
            return 100 * _VALUES[digit]
        case [digit, "hundred", *rest] if digit in _DIGITS:
            below = _below_hundred(rest)
            return None if below is None else 100 * _VALUES[digit] + below
    return _below_hundred(words)


def _below_hundred(words: list[str]) -> int | None:
    match words:
        case [word]:
            return _VALUES.get(word)
        case [tens, digit] if tens in _TENS and digit in _DIGITS:
            return _VALUES[tens] + _VALUES[digit]
    return None
