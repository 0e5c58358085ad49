"""Numbers as people write them in words: "about 5", "≈5", "$5", "5 dollars", "2nd".

Only a text that is one quantity as a whole loses its words, and only words that leave the value as
it is: "5 million", "5 or 6" and "more than 5" stay.
"""

from __future__ import annotations

import re

_OPENING = r"(\A|\\boxed\s*\{|(?<!\\)\$|\\\(|\\\[)\s*"
_APPROXIMATE = re.compile(
    rf"{_OPENING}(?:(?:about|around|approximately|roughly|circa)\s+|(?:approx|ca)\.?\s+|approx\."
    r"|(?:[≈≃≅∼~]|\\(?:approx|simeq|cong|sim)(?![A-Za-z]))\s*)",
    re.IGNORECASE,
)

_CURRENCY = r"(?:US\s?)?\\?\$|[€£¥]|(?:USD|EUR|GBP)\s"
_NUMBER = r"[\d.,_/]*\d"
_ORDINAL = r"(?:st|nd|rd|th)|\^\s*\{?\s*(?:\\(?:text|mathrm|textrm)\s*\{)?(?:st|nd|rd|th)\}{0,2}"
_RATE = r"(?:(?:miles|kilomet(?:er|re)s|met(?:er|re)s|feet|km|words|pages) )?(?:per|an) "
_UNIT = (
    r"(?:US )?dollars?|bucks?|euros?|pounds?|yen|yuan|rupees?|USD|EUR|GBP|each|times|people"
    r"|persons?|children|kids|o.clock|degrees? (?:Celsius|Fahrenheit)"
    rf"|{_RATE}(?:day|week|month|year|hour|minute|second|person|item)"
)
_QUANTITY = re.compile(
    rf"(\\boxed\s*\{{\s*|)([-+\u2212\u2013]?)\s?(?:{_CURRENCY})?\s?([-+\u2212\u2013]?{_NUMBER})"
    rf"(?:{_ORDINAL}|(?:\s+(?:{_UNIT})){{1,2}})?\s*(\}}|)\.?",
    re.IGNORECASE,
)

# A dollar sign before a number, as no formula ends with one.
_DOLLAR = re.compile(r"(?<![\d$\\])\$(?=\d)")
# A price that is not the whole answer: a bound of it, or one of several.
_PART = re.compile(
    r"\b(?:not|than|at (?:least|most)|over|under|above|below|up to|almost|nearly) ?\$"
    r"|\$[\d.,]*\d ?(?:\b(?:or|and|to)\b|[-\u2013]) ?\$?\d|\$.*\$",
    re.IGNORECASE | re.DOTALL,
)


def without_words(text: str) -> str:
    """A quantity without the words and signs around its number, and any other text without a sign
    of approximation before it. In a text of several prices, and in a bound, the dollar signs begin
    no formula, so they are taken off: one of the numbers alone is not what the text says."""
    text = _APPROXIMATE.sub(r"\1", text)
    if found := _QUANTITY.fullmatch(text):
        opening, sign, number, closing = found.groups()
        if bool(opening) == bool(closing):
            return f"{opening}{sign}{number}{closing}"
    if _PART.search(text) and len(_DOLLAR.findall(text)) == text.count("$"):
        return _DOLLAR.sub("", text)
    return text
