"""Rewards that compare a short answer with the gold answers, following the SQuAD rules.

The rules are named and versioned, so that a reported number identifies how it was computed. A
changed rule gets a new name.
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
REDUNDANT_SPACE = re.compile(r"(?<!\w)\s+|\s+(?!\w)")  # redundant white space
QUOTES = "\"'`‘’‚‛“”„‟«»‹›「」『』"
SPACE_CHARACTERS = f"{string.whitespace}\u00a0\u202f"
# Invisible characters: soft hyphens (unless used as a minus sign), directional marks and zero-width
# characters. Mathematical ones, such as invisible plus, are kept. The two joiners are kept between
# letters, because they change how the letters are drawn.
INVISIBLE_CHARACTERS = re.compile(
    r"\u00ad(?!\d)"
    r"|[\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060\u2065-\u206f\ufeff]"
    r"|(?<!\S)[\u200c\u200d]+|[\u200c\u200d]+(?!\S)"
)
# Characters that people and models put around a short answer: quotation marks, brackets, emphasis,
# formula delimiters.
WRAPPING = f"{QUOTES}{SPACE_CHARACTERS}*_$\\()[]{{}}.,:;"
OPTION_PATTERN = re.compile(
    r"(?:(?:the\s+)?(?:option|choice|answer)\b[\W_]*+)?([A-Za-z])", re.IGNORECASE
)
OPTION_LETTER_PATTERN = re.compile(rf"[{QUOTES}]?[(\[]?[A-Z][)\]]?[.:]?[{QUOTES}]?\.?")
OPTION_LIST_PATTERN = re.compile(
    r"\W*[A-Z]\)?(?:(?:\s*[,;&/]\s*(?:and\s+)?|\s+and\s+|\s+)\(?[A-Z]\)?)+\W*"
)  # such as "A, C"
CLOSED_ANSWERS = {"yes", "no", "noanswer"}


def strip_invisible(text: str) -> str:
    """Return a text without invisible characters, which web pages and models insert around and
    inside words."""
    return text if text.isascii() else INVISIBLE_CHARACTERS.sub("", text)


def normalise(text: str) -> str:
    """Return a text in lower case, without punctuation and articles, with single spaces: SQuAD
    v1.1, extended to the punctuation and combining marks of all scripts and to invisible
    characters."""
    plain = unicodedata.normalize("NFC", strip_invisible(text).lower()).translate(PUNCTUATION)
    if plain.isascii():
        return " ".join(ARTICLES.sub(" ", plain).split())
    unpunctuated = "".join(sign for sign in plain if not unicodedata.category(sign).startswith("P"))
    return " ".join(_article_pattern().sub(" ", unpunctuated).split())


@cache
def _article_pattern() -> re.Pattern[str]:
    """Return a pattern for articles that are not part of a word with combining marks."""
    letter = rf"[\w{get_combining_marks()}]"
    return re.compile(rf"(?<!{letter})(?:a|an|the)(?!{letter})")


def strip_wrapping(text: str) -> str:
    """Return an answer without its wrapping: A for "A", (A) and **A**. An answer that consists only
    of wrapping characters, such as a full stop, is kept."""
    text = strip_invisible(text)
    return text.strip(WRAPPING) or text.strip(QUOTES + SPACE_CHARACTERS) or text.strip()


def parse_option(text: str) -> str | None:
    """Return the option letter of a text such as A, (A), A., "A", **A** or Option A; None for any
    other text."""
    match = OPTION_PATTERN.fullmatch(_strip_punctuation(text))
    return match[1].upper() if match else None


def _strip_punctuation(text: str) -> str:
    """Return an answer without its wrapping and the punctuation of all scripts. A # is kept: F#
    differs from F."""
    normalised = unicodedata.normalize("NFKC", strip_wrapping(text))
    return normalised.strip(
        "".join(s for s in set(normalised) - {"#"} if unicodedata.category(s)[0] == "P")
    )


def is_option_letter(gold: str) -> bool:
    """Return whether a gold answer is only an option letter."""
    return OPTION_LETTER_PATTERN.fullmatch(strip_invisible(gold).strip()) is not None


def remove_redundant_space(text: str) -> str:
    """Return a text without redundant white space. "1 1/2" is unchanged, because it is not 11/2."""
    return REDUNDANT_SPACE.sub("", strip_invisible(text).strip())


def normalise_or_raw(text: str) -> str:
    """Return the form of an answer that is compared: the result of `normalise` or, if that is empty
    ("The", "A", "!"), of `strip_wrapping` in lower case. Otherwise all answers that normalise to
    the empty string would be equal."""
    return normalise(text) or strip_wrapping(text).lower()


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """Return 1.0 if any gold answer equals the prediction after `normalise_or_raw`, else 0.0. An
    empty prediction scores 0. If a gold answer is an option letter, the prediction must be a single
    letter: "A, B" does not match B."""
    if not strip_invisible(prediction).strip():
        return 0.0
    return float(any(predicted == gold for predicted, gold in _make_pairs(prediction, golds)))


def _make_pairs(prediction: str, golds: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of the prediction and each gold answer, in the form in which they are compared.
    If options are expected, a prediction that does not name one or several options becomes ""."""
    return [_make_pair(prediction, gold) for gold in golds]


def _make_pair(prediction: str, gold: str) -> tuple[str, str]:
    if is_option_letter(gold):
        return normalise_or_raw(parse_option(prediction) or ""), normalise_or_raw(gold)
    if OPTION_LIST_PATTERN.fullmatch(gold):
        return _parse_options(prediction), _parse_options(gold)
    return normalise_or_raw(prediction), normalise_or_raw(gold)


def _parse_options(text: str) -> str:
    """Return the sorted letters of several options, regardless of their separators; "" for a text
    with other words."""
    words = re.findall(r"\w+", text.lower().replace(" and ", " "))
    if len(words) == 1 and words[0].isalpha():  # AC
        words = list(words[0])
    return "".join(sorted(set(words))) if all(len(word) == 1 for word in words) else ""


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Return the harmonic mean of word precision and recall, maximised over the gold answers. If
    either side is yes, no or noanswer, only equality counts (HotpotQA's evaluation)."""
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
    for answers in sentences.

    Yes, no, noanswer and option letters must match whole words, so that "unknown" does not cover
    "no". A gold answer that normalises to the empty string must equal the whole prediction. A
    prediction that lists guesses also passes, so the metric is lenient and risky as a reward.
    """
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
    """Return whether a normalised gold answer must match a whole word."""
    return gold in CLOSED_ANSWERS or (len(gold) == 1 and gold.isascii() and gold.isalpha())


RULES: Mapping[str, AnswerRule] = {
    "em/squad-7": exact_match,
    "f1/squad-7": f1,
    "cover_em/substring-7": cover_em,
}


class StatelessReward:
    """Base class of rewards without state."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} is stateless, but received {state}")


class RuleReward(StatelessReward):
    """Score of each answer by a rule of `RULES`: 0 without an answer, None for a task without gold
    answers."""

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
    rule = "em/squad-7"


class F1Reward(RuleReward):
    name = "f1"
    rule = "f1/squad-7"


class CoverExactMatch(RuleReward):
    name = "cover_em"
    rule = "cover_em/substring-7"


class FormatReward(StatelessReward):
    """Reward of 1 if the trajectory matches its dialect's grammar, else 0."""

    name = "format"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [float(trajectory.well_formed) for trajectory in group]


class FormatPenaltyReward(StatelessReward):
    """Reward of -1 if the trajectory violates its dialect's grammar, else 0 (AutoCoA, arXiv
    2503.06580, section 3.3, penalises an answer that leaves out a required tag).

    With {em: 1, format_penalty: p}, 0 < p < 1, a correct answer in an invalid format is worth 1 -
    p; a wrong or missing one is worth -p. A rollout whose tools were unavailable and which ended
    without an answer is not penalised: its call would have been well-formed with the tools
    available.
    """

    name = "format_penalty"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [0.0 if t.well_formed or _ended_by_call(t) else -1.0 for t in group]


def _ended_by_call(trajectory: Trajectory) -> bool:
    return trajectory.tool_free and trajectory.answer is None
