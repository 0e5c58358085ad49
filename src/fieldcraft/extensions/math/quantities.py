"""Numbers in everyday notation and in words: "about 5", "$5", "5 km/h", "2nd", "twenty-one".

Words around a number are removed only from a text that is one quantity as a whole, and only if this
does not change the value: "5 or 6" and "more than 5" are unchanged. The unit is separated from the
value (`math_units.py`). Numbers in words, also with a scale as in "2.5 billion", become digits.
"""

from __future__ import annotations

import re
from decimal import Decimal

from fieldcraft.extensions.math.units import Unit, parse_currency, parse_unit

_OPENING = r"(\A|\\boxed\s*\{|(?<!\\)\$|\\\(|\\\[)\s*"
_APPROXIMATE = re.compile(
    rf"{_OPENING}(?:(?:about|around|approximately|roughly|circa)\s+|(?:approx|ca)\.?\s+|approx\."
    r"|(?:[≈≃≅∼~]|\\(?:approx|simeq|cong|sim)(?![A-Za-z]))\s*)",
    re.IGNORECASE,
)

# "The answer is 5", "Answer: 5", "So x = 5": the words before the value.
_STATED_ANSWER = re.compile(
    r"(?!.*\b(?:not|never|no|if|or|either|neither)\b)(?P<said>[A-Za-z][A-Za-z,' ]*?)"
    r"(?:\b(?:is|are|was|equals|becomes)\b:?|[:=])\s*(?P<value>\S[^:=]*)",
    re.IGNORECASE | re.DOTALL,
)
_ANSWER = re.compile(r"\b(?:answer|result)\s*\Z", re.IGNORECASE)
_VALUE_START = re.compile(
    r"[-+\u2212(]*\s?(?:pi(?![A-Za-z])|\$|\\(?:frac|sqrt|pi)|[\u221a\u03c0.]|\d)"
)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")

_CURRENCY = r"(?:US\s?)?\\?\$|[€£¥]|(?:USD|EUR|GBP)\s"
_NUMBER = r"[\d.,_/]*\d"
_ORDINAL = r"(?:st|nd|rd|th)|\^\s*\{?\s*(?:\\(?:text|mathrm|textrm)\s*\{)?(?:st|nd|rd|th)\}{0,2}"
_QUANTITY = re.compile(
    rf"(\\boxed\s*\{{\s*|)([-+\u2212\u2013]?)\s?(?:{_CURRENCY})?\s?([-+\u2212\u2013]?{_NUMBER})"
    rf"(?:{_ORDINAL})?\s*(\}}|)\.?",
    re.IGNORECASE,
)

# A dollar sign before a number; no formula ends with one.
_DOLLAR = re.compile(r"(?<![\d$\\])\$(?=\d)")
# A price that is not the whole answer: a bound, or one of several prices.
_PARTIAL_PRICE = re.compile(
    r"\b(?:not|than|at (?:least|most)|over|under|above|below|up to|almost|nearly) ?\$"
    r"|\$[\d.,]*\d ?(?:\b(?:or|and|to)\b|[-\u2013]) ?\$?\d|\$.*\$",
    re.IGNORECASE | re.DOTALL,
)


def extract_stated_value(text: str) -> str:
    """Return the value that a sentence states as the answer; any other text is returned unchanged.
    If the sentence does not mention an answer, only a value without words is extracted: "Ann is 5
    years older" is unchanged."""
    match = _STATED_ANSWER.fullmatch(text)
    if match is None or len(match["said"].strip()) < 2:
        return text
    value = match["value"].strip()
    is_bare = _VALUE_START.match(value) and not _WORD.search(_strip_to_value(value))
    return value if _ANSWER.search(match["said"]) or is_bare else text


def _strip_to_value(value: str) -> str:
    """Return a value without surrounding words, units and the name of π."""
    return strip_quantity_words(_split_trailing_unit(value)[0]).replace("pi", "")


def strip_quantity_words(text: str) -> str:
    """Return a quantity without the words and signs around its number, and any other text without a
    leading approximation sign. In a text with several prices, or with a bound, dollar signs do not
    delimit formulas. They are removed, because one of the numbers alone would not represent the
    text."""
    text = _APPROXIMATE.sub(r"\1", text)
    if found := _QUANTITY.fullmatch(text):
        opening, sign, number, closing = found.groups()
        if bool(opening) == bool(closing):
            return f"{opening}{sign}{number}{closing}"
    if _PARTIAL_PRICE.search(text) and len(_DOLLAR.findall(text)) == text.count("$"):
        return _DOLLAR.sub("", text)
    return text


# -- units -------------------------------------------------------------------------------------

_BRACES = r"(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})*"
_BOX = re.compile(rf"\\boxed\s*\{{(?P<inside>{_BRACES})\}}", re.DOTALL)
_FORMULA = re.compile(
    r"(?<!\\)\$(?P<inside>[^$]+)(?<!\\)\$|\\\((?P<round>.*?)\\\)|\\\[(?P<square>.*?)\\\]", re.DOTALL
)
_MAX_UNIT_CHARACTERS = 80  # characters
# Positions where a unit may start: after a number, a root, a fraction, π or a bracket.
_UNIT_START = re.compile(
    r"(?<=[\d})\u03c0\u00b2\u00b3\u00bc-\u00be.])(?=[\s\\~A-Za-z^%\u00b0\u00a2\u2126\u03a9])"
    r"|(?<=[A-Za-z])(?=[\s\\~^%\u00b0])"
)
_LATEX_UNIT = re.compile(
    r"(?:\s|~|\\[,;:! ])*(?:(?:\\[dt]?frac\s*\{\s*)?\\(?:text|mathrm|mbox|operatorname|rm)"
    r"(?![A-Za-z])|\\%|\^|[%\u00b0])"
)
_VALUE = re.compile(
    r"(?:[-+\u2212\u2013*\u00b7\u00d7^(){}\d.,_/\s\u03c0\u221a$\u20ac\u00a3\u00a5]|[\u00b2\u00b3\u00bc-\u00be]|\\(?:[dt]?frac|sqrt|pi|times|cdot|left"
    r"|right|[$,;!])|(?<![A-Za-z])pi(?![A-Za-z]))+"
)
_LETTER = re.compile(r"(?:[\s~]+[A-Za-z]|[mghs])(?![A-Za-z])")  # metres, grams, hours, seconds: 5m
_VARIABLE = re.compile(r"[A-Za-z](?![A-Za-z])|(?:\s|~|\\[,;:! ])*\\[A-Za-z]")  # 5N, 5\frac{m}{s}
_SINGLE_NUMBER = re.compile(rf"\s*[-+\u2212\u2013]?\s?{_NUMBER}")
_FRACTION = re.compile(r"\d/\d+\Z")
_PRICE = re.compile(
    rf"\s*[-+\u2212\u2013]?\s?(?P<sign>{_CURRENCY})\s?[-+\u2212\u2013]?{_NUMBER}\.?\s*",
    re.IGNORECASE,
)


def split_unit(text: str) -> tuple[str, Unit | None]:
    """Return a text without the unit of the quantity at its end, or of its last box or formula, and
    the unit. Any other text is returned unchanged."""
    matches = list(_BOX.finditer(text)) or list(_FORMULA.finditer(text))
    if not matches:
        return _split_trailing_unit(text)
    group = matches[-1].lastgroup or "inside"
    begin, end = matches[-1].span(group)
    inside, unit = split_unit(text[begin:end])
    if unit is not None:
        return text[:begin] + inside + text[end:], unit
    return text, parse_unit(text[matches[-1].end() :].rstrip(". "))


def _split_trailing_unit(text: str) -> tuple[str, Unit | None]:
    stripped = text.rstrip(" .")
    for match in _UNIT_START.finditer(stripped, max(len(stripped) - _MAX_UNIT_CHARACTERS, 0)):
        value, suffix = stripped[: match.start()], stripped[match.start() :]
        unit = parse_unit(suffix)
        if unit is not None and _is_unit_after(value, suffix):
            return value, unit
    price = _PRICE.fullmatch(text)
    return text, parse_currency(price["sign"]) if price else None


def _is_unit_after(value: str, suffix: str) -> bool:
    """Return whether the suffix of a value is a unit rather than variables: a single letter
    requires a bare number before it, and a word requires a value without variables."""
    if _LATEX_UNIT.match(suffix):
        return True
    if _FRACTION.search(value) and not suffix[:1].isspace():
        return False
    value = _APPROXIMATE.sub(r"\1", value)
    last_phrase = re.split(r"(?<=[A-Za-z:])\s+", value)[-1]
    if _LETTER.match(suffix):
        return _SINGLE_NUMBER.fullmatch(value) is not None
    if _VARIABLE.match(suffix):
        return False
    return _VALUE.fullmatch(last_phrase) is not None or parse_number_words(value) is not None


# -- numbers in words --------------------------------------------------------------------------

SMALL_NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_VALUES = {word: value for value, word in enumerate(SMALL_NUMBERS)}
_VALUES |= {word: 10 * ten for ten, word in enumerate(TENS, start=2)}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALES |= {"lakh": 10**5, "crore": 10**7}

_DIGITS = frozenset(SMALL_NUMBERS[1:10])
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
        case [tens, digit] if tens in TENS and digit in _DIGITS:
            return _VALUES[tens] + _VALUES[digit]
    return None
