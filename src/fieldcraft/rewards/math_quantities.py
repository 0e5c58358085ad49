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

# "The answer is 5", "Answer: 5", "So x = 5": what an answer says before its value.
_SAID = re.compile(
    r"(?!.*\b(?:not|never|no|if|or|either|neither)\b)(?P<said>[A-Za-z][A-Za-z,' ]*?)"
    r"(?:\b(?:is|are|was|equals|becomes)\b:?|[:=])\s*(?P<value>\S[^:=]*)",
    re.IGNORECASE | re.DOTALL,
)
_ANSWER = re.compile(r"\b(?:answer|result)\s*\Z", re.IGNORECASE)
_BEGINS = re.compile(r"[-+\u2212(]*\s?(?:pi(?![A-Za-z])|\$|\\(?:frac|sqrt|pi)|[\u221a\u03c0.]|\d)")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")

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


def value_of(text: str) -> str:
    """What a sentence says that an answer is, and any other text as it is. Where the sentence names
    no answer, only a value without words is taken: "Ann is 5 years older" stays."""
    found = _SAID.fullmatch(text)
    if found is None or len(found["said"].strip()) < 2:
        return text
    value = found["value"].strip()
    alone = _BEGINS.match(value) and not _WORD.search(without_words(value).replace("pi", ""))
    return value if _ANSWER.search(found["said"]) or alone else text


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
