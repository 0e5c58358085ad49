"""Rewards that compare a short answer with the gold answers, by the rules of SQuAD.

The rules are named and versioned, so that a reported number says how it was computed; a change of a
rule is a new name.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from fieldcraft.records.words import get_combining_marks
from fieldcraft.types import Trajectory

AnswerRule = Callable[[str, Sequence[str]], float]

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
REDUNDANT_SPACE = re.compile(r"(?<!\w)\s+|\s+(?!\w)")  # white space that separates nothing
QUOTES = "\"'`‘’‚‛“”„‟«»‹›「」『』"
SPACE_CHARACTERS = f"{string.whitespace}\u00a0\u202f"
# What shows nothing: soft hyphens, unless they are meant as a minus, marks of direction, and signs
# without a width. Those of mathematics, such as an invisible plus, stay, and the two joiners stay
# between letters, as they change how these are drawn.
INVISIBLE_CHARACTERS = re.compile(
    r"\u00ad(?!\d)"
    r"|[\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060\u2065-\u206f\ufeff]"
    r"|(?<!\S)[\u200c\u200d]+|[\u200c\u200d]+(?!\S)"
)
# What people and models put around a short answer: quotation marks, brackets, emphasis, formulas.
WRAPPING = f"{QUOTES}{SPACE_CHARACTERS}*_$\\()[]{{}}.,:;"
OPTION_PATTERN = re.compile(
    r"(?:(?:the\s+)?(?:option|choice|answer)\b[\W_]*+)?([A-Za-z])", re.IGNORECASE
)
OPTION_LETTER_PATTERN = re.compile(rf"[{QUOTES}]?[(\[]?[A-Z][)\]]?[.:]?[{QUOTES}]?\.?")
OPTION_LIST_PATTERN = re.compile(
    r"\W*[A-Z]\)?(?:(?:\s*[,;&/]\s*|\s+and\s+|\s+)\(?[A-Z]\)?)+\W*"
)  # such as A, C
CLOSED_ANSWERS = {"yes", "no", "noanswer"}


def strip_invisible(text: str) -> str:
    """Return a text without the signs that show nothing, which web pages and models put around
    words and into them."""
    return text if text.isascii() else INVISIBLE_CHARACTERS.sub("", text)


def normalise(text: str) -> str:
    """Return a text in lower case, without punctuation, without articles, single spaces: SQuAD
    v1.1, with the punctuation and the marks of all scripts, and without what shows nothing."""
    plain = unicodedata.normalize("NFC", strip_invisible(text).lower()).translate(PUNCTUATION)
    if plain.isascii():
        return " ".join(ARTICLES.sub(" ", plain).split())
    unpunctuated = "".join(sign for sign in plain if not unicodedata.category(sign).startswith("P"))
    return " ".join(_article_pattern().sub(" ", unpunctuated).split())


@cache
def _article_pattern() -> re.Pattern[str]:
    """Return a pattern for the articles that are no parts of a word with marks."""
    letter = rf"[\w{get_combining_marks()}]"
    return re.compile(rf"(?<!{letter})(?:a|an|the)(?!{letter})")


def strip_wrapping(text: str) -> str:
    """Return an answer without what is written around it: A of "A", (A) and **A**. One that is
    nothing else, as a full stop, stays."""
    text = strip_invisible(text)
    return text.strip(WRAPPING) or text.strip(QUOTES + SPACE_CHARACTERS) or text.strip()


def parse_option(text: str) -> str | None:
    """Return the letter of an option, as in A, (A), A., "A", **A**, Option A; None for any other
    text."""
    match = OPTION_PATTERN.fullmatch(_strip_punctuation(text))
    return match[1].upper() if match else None


def _strip_punctuation(text: str) -> str:
    """Return an answer without what is written around it, and the punctuation of all scripts. A #
    stays: F# is no F."""
    normalised = unicodedata.normalize("NFKC", strip_wrapping(text))
    return normalised.strip(
        "".join(s for s in set(normalised) - {"#"} if unicodedata.category(s)[0] == "P")
    )


def is_option_letter(gold: str) -> bool:
    """Tell whether a gold answer is the letter of an option and nothing else."""
    return OPTION_LETTER_PATTERN.fullmatch(strip_invisible(gold).strip()) is not None


def remove_redundant_space(text: str) -> str:
    """Return a text without the white space that separates nothing: "1 1/2" stays, as it is not
    11/2."""
    return REDUNDANT_SPACE.sub("", strip_invisible(text).strip())


def normalise_or_raw(text: str) -> str:
    """Return the part of an answer that is compared: `normalise` of it or, where nothing is left
    ("The", "A", "!"), the text of `strip_wrapping` in lower case. Else all answers of which nothing
    is left would be the same."""
    return normalise(text) or strip_wrapping(text).lower()


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """Return 1.0 if any gold answer equals the prediction as `normalise_or_raw`; an empty
    prediction is 0.
    Where a gold answer is the letter of an option, the prediction must be one letter: "A, B" is not
    B."""
    if not strip_invisible(prediction).strip():
        return 0.0
    return float(any(predicted == gold for predicted, gold in _make_pairs(prediction, golds)))


def _make_pairs(prediction: str, golds: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of a prediction and each gold answer, as they are compared. Nothing of a
    prediction counts that names no single option, or not several, where they are asked for."""
    return [_make_pair(prediction, gold) for gold in golds]


def _make_pair(prediction: str, gold: str) -> tuple[str, str]:
    if is_option_letter(gold):
        return normalise_or_raw(parse_option(prediction) or ""), normalise_or_raw(gold)
    if OPTION_LIST_PATTERN.fullmatch(gold):
        return _parse_options(prediction), _parse_options(gold)
    return normalise_or_raw(prediction), normalise_or_raw(gold)


def _parse_options(text: str) -> str:
    """Return the letters of several options in their order, whatever separates them; "" for a text
    with other words."""
    words = re.findall(r"\w+", text.lower().replace(" and ", " "))
    if len(words) == 1 and words[0].isalpha():  # AC
        words = list(words[0])
    return "".join(sorted(set(words))) if all(len(word) == 1 for word in words) else ""


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Return the harmonic mean of the precision and recall of words, best over the gold answers.
    Where either side is yes, no or noanswer, only equality counts (HotpotQA's evaluation)."""
    return max(
        (_f1(predicted, gold) for predicted, gold in _make_pairs(prediction, golds)), default=0.0
    )


def _f1(predicted: str, gold: str) -> float:
    if predicted != gold and not CLOSED_ANSWERS.isdisjoint((predicted, gold)):
        return 0.0
    predicted_words, gold_words = predicted.split(), gold.split()
    common = (Counter(predicted_words) & Counter(gold_words)).total()
    # 2PR / (P + R) with P = common / predicted words and R = common / gold words
    return 2 * common / (len(predicted_words) + len(gold_words)) if common else 0.0


def cover_em(prediction: str, golds: Sequence[str]) -> float:
    """Return 1.0 if the prediction contains a gold answer after `normalise` (FlashRAG's accuracy),
    for answers in sentences. Yes, no, noanswer and the letters of options must stand as words of
    their own, lest "unknown" cover "no"; a gold answer of which nothing is left must be the whole
    prediction. A prediction that lists guesses passes too, so it is a lenient measure and a reward
    to be careful with."""
    predicted = normalise(prediction)
    words = predicted.split()
    normalised_golds = filter(
        None, (normalise(gold) for gold in golds if not OPTION_LIST_PATTERN.fullmatch(gold))
    )
    is_covered = any(
        gold in (words if _must_match_word(gold) else predicted) for gold in normalised_golds
    )
    return float(is_covered or exact_match(prediction, golds))


def _must_match_word(gold: str) -> bool:
    """Tell whether a gold answer, as it is normalised, covers nothing as a part of a word."""
    return gold in CLOSED_ANSWERS or (len(gold) == 1 and gold.isascii() and gold.isalpha())


RULES: Mapping[str, AnswerRule] = {
    "em/squad-6": exact_match,
    "f1/squad-6": f1,
    "cover_em/substring-6": cover_em,
}


class StatelessReward:
    """A reward that remembers nothing over the run."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but was given {state}")


class RuleReward(StatelessReward):
    """Score of each answer by a rule of `RULES`: no answer is 0, a task without gold answers
    None."""

    name: str
    rule: ClassVar[str]

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [self._score(trajectory) for trajectory in group]

    def _score(self, trajectory: Trajectory) -> float | None:
        if not trajectory.task.answers:
            return None
        return RULES[self.rule](trajectory.answer or "", trajectory.task.answers)


class ExactMatch(RuleReward):
    name = "em"
    rule = "em/squad-6"


class F1Reward(RuleReward):
    name = "f1"
    rule = "f1/squad-6"


class CoverExactMatch(RuleReward):
    name = "cover_em"
    rule = "cover_em/substring-6"


class FormatReward(StatelessReward):
    """1 if the trajectory obeys its dialect's grammar, else 0."""

    name = "format"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [float(trajectory.well_formed) for trajectory in group]


class FormatPenaltyReward(StatelessReward):
    """-1 if the trajectory breaks its dialect's grammar, else 0 (AutoCoA, arXiv 2503.06580, section
    3.3, penalises an answer that leaves out a required tag).

    With {em: 1, format_penalty: p}, 0 < p < 1, a right answer in a broken form is worth 1 - p, and
    a wrong one, or none, is worth -p. A rollout whose tools were unavailable, and which ended
    without an answer, is not penalised: its call was well-formed where tools are there.
    """

    name = "format_penalty"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [0.0 if t.well_formed or _ended_by_call(t) else -1.0 for t in group]


def _ended_by_call(trajectory: Trajectory) -> bool:
    return trajectory.tool_free and trajectory.answer is None
