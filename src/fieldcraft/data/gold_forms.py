"""Gold answers that look like something else than plain text, and answers that people would accept.

Nothing is changed here: the forms tell a user what a grader makes of their answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from fieldcraft.data.written import items_in, value_in
from fieldcraft.rewards.answers import is_option

_NUMBER = re.compile(
    r"[-+\u2212]?[$\u20ac\u00a3]?(?:\d{1,3}(?:[,_ ]\d{3})+|\d+)?(?:\.\d*)?(?:[eE][-+]?\d+)?"
    r"(?: ?%|(?: \d+)?/\d+)?"
)
_MATHEMATICS = re.compile(r"\\[A-Za-z]+|\$.*\$|\w\^|\*\*")
_SEVERAL = re.compile(r"\S *(?:\||;|\n\s*| / | or |<\w*(?:split|sep)\w*>) *\S")
_TRUTH = ("true", "false")
_MISSING = (
    *(
        "none",
        "null",
        "nan",
        "na",
        "n/a",
        "#n/a",
        "<na>",
        "\\n",
        "-",
        "?",
        "unknown",
        "[]",
        "set()",
    ),
    *("unanswerable", "not answerable", "no answer", "i don't know", "i do not know"),
)
# What Python writes of its values.
_WRITTEN = re.compile(
    r"(?:frozenset|set|list|tuple|array|Index|Series)\(.+\)|b(['\"]).*\1", re.DOTALL
)
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_ONE_PAIR = re.compile(
    r"\[[^][]*+(?:\[[^][]*+\][^][]*+)*+\]"
)  # of square brackets, around all of it
_QUOTED = re.compile(r"\{\s*(['\"]).*\1\s*\}", re.DOTALL)
_KEY = re.compile(r"\{\s*(['\"])[^'\":]*\1\s*:.*\}", re.DOTALL)


@dataclass(frozen=True)
class Form:
    """Appearance of a gold answer, and the advice for its user."""

    name: str  # of several answers
    fits: Callable[[str], bool]
    advice: str


def _is_object(text: str) -> bool:
    """Tell whether a text shows an object, or means to: with quotation marks in its strings, as in
    {'a': 'it's'}, it cannot be read."""
    return isinstance(value_in(text), dict) or _KEY.fullmatch(text) is not None


def _is_list(text: str) -> bool:
    """Tell whether a text shows a list, or means to: ['it's'] and [a] cannot be read as one."""
    if _WRITTEN.fullmatch(text):
        return True
    inside = text[1:-1]
    if _BRACKETS.get(text[:1]) != text[-1:] or not inside.strip() or is_option(text):
        return False
    meant = _ONE_PAIR.fullmatch(text) or _QUOTED.fullmatch(text)
    return "," in inside or items_in(text) is not None or meant is not None


def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and any(map(str.isdigit, text))


FORMS: Sequence[Form] = (
    Form(
        "missing values",
        lambda text: text.lower() in _MISSING,
        "it counts as the right answer: remove records that have none",
    ),
    Form(
        "objects",
        _is_object,
        "the whole text is the answer: write what is accepted as a list in golden_answers, tests of"
        " a program as stdin_tests",
    ),
    Form(
        "lists",
        _is_list,
        "the whole text is the answer: write several answers as a list in golden_answers, and"
        " graded_by: math where the list is the answer",
    ),
    Form(
        "several answers in one text",
        lambda text: _SEVERAL.search(text) is not None,
        "the whole text is the answer: write a list in golden_answers",
    ),
    Form(
        "truth values",
        lambda text: text.lower() in _TRUTH,
        'yes and no do not equal them: write ["true", "yes"] where both are right',
    ),
    Form(
        "options",
        is_option,
        "the letter counts, as in (A) and Option A, and not the text of the option",
    ),
    Form(
        "numbers",
        is_number,
        "words are compared without punctuation, so 3.5 equals 35 and -5 equals 5: graded_by: math,"
        " or correct=math for all questions, compares them as values",
    ),
    Form(
        "mathematics",
        lambda text: _MATHEMATICS.search(text) is not None,
        "texts are compared: graded_by: math, or correct=math for all questions, compares values",
    ),
)


def form_of(gold: str) -> Form | None:
    """Return the form of a gold answer, None for plain text."""
    return next((form for form in FORMS if form.fits(gold.strip())), None)


def plausible(gold: str) -> list[str]:
    """Return the answers that say the same, as people and models write them: with an article, a
    bracket, a unit, in LaTeX, in another format of numbers, in a sentence."""
    gold = gold.strip()
    ways = ["{}.", "({})", "**{}**", "\\boxed{{{}}}", "The answer is {}."]
    if is_option(gold):
        return [way.format(gold) for way in ("({})", "{}.", "**{}**", "Option {}")]
    if not is_number(gold):
        return [way.format(gold) for way in ("the {}", *ways)]
    plain = gold.replace(",", "").replace("_", "")
    formats = [f"{gold} km", f"${gold}$"]
    if plain.lstrip("-").isdecimal():
        formats += [f"{Decimal(plain):,}", f"{plain}.0", f"{Decimal(plain):e}"]
    formats += [way.format(gold) for way in ways]
    return [text for text in dict.fromkeys(formats) if text != gold]
