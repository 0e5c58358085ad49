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
_LEADING_ARTICLE = re.compile(rf"\Aa (?={'|'.join(sorted(_BEFORE_AND))})")
_SCALED = re.compile(
    r"(?<![\w.,/^}\\])(?P<number>\d[\d,_]*(?:\.\d+)?)(?:\s|\\[ ,;]|~)*(?:\\text\s*\{\s*)?"
    rf"(?P<scale>{'|'.join(_SCALES)})\b(?:\s*\}})?",
    re.IGNORECASE,
)
_SPELT = re.compile(r"(?:\\text\s*)?\{(?P<words>\s*[A-Za-z][A-Za-z\s-]*)\}")


def convert_number_words(text: str) -> str:
    """Return a text with digits in place of numbers with a scale word, such as 1 million, and of a
    number entirely in words, such as twenty-one."""
    text = _SPELT.sub(_convert_in_braces, _SCALED.sub(_expand_scale, text))
    value = parse_number_words(text)
    return text if value is None else str(value)


def _expand_scale(match: re.Match[str]) -> str:
    number = Decimal(re.sub("[,_]", "", match["number"]))
    return f"{(number * _SCALES[match['scale'].lower()]).normalize():f}"


def _convert_in_braces(match: re.Match[str]) -> str:
    value = parse_number_words(match["words"])
    return match[0] if value is None else f"{{{value}}}"


def parse_number_words(text: str) -> int | None:
    """Return the integer expressed by words, None for any other text."""
    text = _LEADING_ARTICLE.sub("one ", text.strip().lower().removesuffix("."))
    sign = -1 if text.startswith("minus ") else 1
    words = re.split(r"[-\s]+", text.removeprefix("minus "))
    joined = [i for i, word in enumerate(words) if word == "and"]
    if any(i == 0 or words[i - 1] not in _BEFORE_AND for i in joined):
        return None
    value = _parse_scaled([word for word in words if word != "and"])
    return None if value is None else sign * value


def _parse_scaled(words: list[str]) -> int | None:
    """Return the number expressed by words. The part after a scale word is less than that scale."""
    scales = [word for word in words if word in _SCALES]
    if not scales:
        return _parse_below_thousand(words)
    place = words.index(max(scales, key=lambda word: _SCALES[word]))
    factor = _SCALES[words[place]]
    multiplier = _parse_below_thousand(words[:place])
    rest = _parse_scaled(words[place + 1 :]) if words[place + 1 :] else 0
    return (
        None if multiplier is None or rest is None or rest >= factor else multiplier * factor + rest
    )


def _parse_below_thousand(words: list[str]) -> int | None:
    match words:
        case [digit, "hundred"] if digit in _DIGITS:
            return 100 * _VALUES[digit]
        case [digit, "hundred", *rest] if digit in _DIGITS:
            below = _parse_below_hundred(rest)
            return None if below is None else 100 * _VALUES[digit] + below
    return _parse_below_hundred(words)


def _parse_below_hundred(words: list[str]) -> int | None:
    match words:
        case [word]:
            return _VALUES.get(word)
        case [tens, digit] if tens in _TENS and digit in _DIGITS:
            return _VALUES[tens] + _VALUES[digit]
    return None
