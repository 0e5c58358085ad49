"""Gold answers in forms other than plain text, and answer variants that people would accept.

Nothing is changed here: the forms are used to explain how a grader treats the answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from fieldcraft.data.literals import parse_list_items, parse_value
from fieldcraft.rewards.answers import is_option_letter

_NUMBER = re.compile(
    r"[-+\u2212]?[$\u20ac\u00a3]?(?:\d{1,3}(?:[,_ ]\d{3})+|\d+)?(?:\.\d*)?(?:[eE][-+]?\d+)?"
    r"(?: ?%|(?: \d+)?/\d+)?"
)
_MATHEMATICS = re.compile(r"\\[A-Za-z]+|\$.*\$|\w\^|\*\*")
_SEVERAL_ANSWERS = re.compile(r"\S *(?:\||;|\n\s*| / | or |<\w*(?:split|sep)\w*>) *\S")
_TRUTH_VALUES = ("true", "false")
_MISSING_VALUES = (
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
# String representations of Python objects.
_PYTHON_REPR = re.compile(
    r"(?:frozenset|set|list|tuple|array|Index|Series)\(.+\)|b(['\"]).*\1", re.DOTALL
)
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_ONE_PAIR = re.compile(
    r"\[[^][]*+(?:\[[^][]*+\][^][]*+)*\]"
)  # square brackets around the whole text
_QUOTED = re.compile(r"\{\s*(['\"]).*\1\s*\}", re.DOTALL)
_KEY = re.compile(r"\{\s*(['\"])[^'\":]*\1\s*:.*\}", re.DOTALL)


@dataclass(frozen=True)
class AnswerForm:
    """Form of a gold answer, and the advice for the user."""

    name: str  # in the plural
    matches: Callable[[str], bool]
    advice: str


def _is_object(text: str) -> bool:
    """Return whether a text is an object or resembles one: it cannot be parsed if its strings
    contain quotation marks, as in {'a': 'it's'}."""
    return isinstance(parse_value(text), dict) or _KEY.fullmatch(text) is not None


def _is_list(text: str) -> bool:
    """Return whether a text is a list or resembles one: ['it's'] and [a] cannot be parsed."""
    if _PYTHON_REPR.fullmatch(text):
        return True
    inside = text[1:-1]
    if _BRACKETS.get(text[:1]) != text[-1:] or not inside.strip() or is_option_letter(text):
        return False
    looks_like_list = _ONE_PAIR.fullmatch(text) or _QUOTED.fullmatch(text)
    return "," in inside or parse_list_items(text) is not None or looks_like_list is not None


def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and any(map(str.isdigit, text))


ANSWER_FORMS: Sequence[AnswerForm] = (
    AnswerForm(
        "missing values",
        lambda text: text.lower() in _MISSING_VALUES,
        "it counts as the right answer: remove records that have none",
    ),
    AnswerForm(
        "objects",
        _is_object,
        "the whole text is the answer: write what is accepted as a list in golden_answers, tests of"
        " a program as stdin_tests",
    ),
    AnswerForm(
        "lists",
        _is_list,
        "the whole text is the answer: write several answers as a list in golden_answers, and"
        " graded_by: math where the list is the answer",
    ),
    AnswerForm(
        "several answers in one text",
        lambda text: _SEVERAL_ANSWERS.search(text) is not None,
        "the whole text is the answer: write a list in golden_answers",
    ),
    AnswerForm(
        "truth values",
        lambda text: text.lower() in _TRUTH_VALUES,
        'yes and no do not equal them: write ["true", "yes"] where both are right',
    ),
    AnswerForm(
        "options",
        is_option_letter,
        "the letter counts, as in (A) and Option A, and not the text of the option",
    ),
    AnswerForm(
        "numbers",
        is_number,
        "words are compared without punctuation, so 3.5 equals 35 and -5 equals 5: graded_by: math,"
        " or verdict_reward=math for all questions, compares them as values",
    ),
    AnswerForm(
        "mathematics",
        lambda text: _MATHEMATICS.search(text) is not None,
        "texts are compared: graded_by: math, or verdict_reward=math for all questions, compares"
        " values",
    ),
)


def detect_form(gold: str) -> AnswerForm | None:
    """Return the form of a gold answer, or None for plain text."""
    return next((form for form in ANSWER_FORMS if form.matches(gold.strip())), None)


def make_plausible_variants(gold: str) -> list[str]:
    """Return equivalent answers, as people and models write them: with an article, a bracket or a
    unit, in LaTeX, in another number format, or in a sentence."""
    gold = gold.strip()
    templates = ["{}.", "({})", "**{}**", "\\boxed{{{}}}", "The answer is {}."]
    if is_option_letter(gold):
        return [template.format(gold) for template in ("({})", "{}.", "**{}**", "Option {}")]
    if not is_number(gold):
        return [template.format(gold) for template in ("the {}", *templates)]
    plain = gold.replace(",", "").replace("_", "")
    formats = [f"{gold} km", f"${gold}$"]
    if plain.lstrip("-").isdecimal():
        formats += [f"{Decimal(plain):,}", f"{plain}.0", f"{Decimal(plain):e}"]
    formats += [template.format(gold) for template in templates]
    return [text for text in dict.fromkeys(formats) if text != gold]
