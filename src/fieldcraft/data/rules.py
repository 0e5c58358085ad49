"""The built-in filters of demonstrations: AFM's rules, near duplicates and benchmarks.

AFM is of arXiv 2508.13167, section 3.2.1. Each filter returns (keep, reason), see `filters.py`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from fieldcraft.data.duplicates import NearDuplicateIndex
from fieldcraft.data.filters import KEEP, MAX_COPIES, Demonstration, FilterContext, FilterDecision
from fieldcraft.data.tasks import read_tasks
from fieldcraft.dialects.encoding import encode_demonstration
from fieldcraft.records.words import split_words
from fieldcraft.rewards.answers import normalise_or_raw
from fieldcraft.types import ThoughtRole, ToolCall, UserError
from fieldcraft.web.blocking import has_canary

MIN_REPEATED_WORDS = 8  # shorter thoughts, such as "I must search.", may come again
NGRAM_WORDS = 13  # words, as in GPT-3 (arXiv 2005.14165, appendix C)


class ComplexityFilter:
    """Filter that leaves out chains with too few interactions, or with too few calls; see
    `Demonstration.num_interactions`."""

    def __init__(
        self, least: PositiveInt = 5, count: Literal["interactions", "calls"] = "interactions"
    ) -> None:
        self.reason = f"fewer than {least} {count}"
        self.least = least
        self.count = count

    def __call__(self, demonstration: Demonstration, context: FilterContext) -> FilterDecision:
        found = (
            len(demonstration.calls) if self.count == "calls" else demonstration.num_interactions
        )
        return FilterDecision(found >= self.least, self.reason)


class ToolsFilter:
    """Filter that leaves out chains that call too few different tools."""

    def __init__(self, least: PositiveInt = 2) -> None:
        self.reason = f"fewer than {least} different tools"
        self.least = least

    def __call__(self, demonstration: Demonstration, context: FilterContext) -> FilterDecision:
        return FilterDecision(
            len({call.tool for call in demonstration.calls}) >= self.least, self.reason
        )


class HopsFilter:
    """Filter that leaves out chains with fewer than `least` or more than `most` hops; see
    `Demonstration.num_hops`."""

    def __init__(self, least: PositiveInt = 5, most: PositiveInt = 20) -> None:
        """Raise UserError for a range without any number in it."""
        if least > most:
            raise UserError(
                f"the range {least} to {most} of the filter 'hops' is empty: raise its 'most'."
            )
        self.least, self.most = least, most

    def __call__(self, demonstration: Demonstration, context: FilterContext) -> FilterDecision:
        if demonstration.num_hops > self.most:
            return FilterDecision(0, f"more than {self.most} hops")
        return FilterDecision(demonstration.num_hops >= self.least, f"fewer than {self.least} hops")


async def drop_wrong(demonstration: Demonstration, context: FilterContext) -> FilterDecision:
    """Leave out answers that are wrong, and those that nothing can grade."""
    if demonstration.answer is None:
        return FilterDecision(0, "no answer")
    is_correct = await context.grade(demonstration)
    return FilterDecision(
        is_correct is True, "nothing can grade it" if is_correct is None else "a wrong answer"
    )


def drop_redundant(demonstration: Demonstration, context: FilterContext) -> FilterDecision:
    """Leave out chains in which a call, or a thought of several words, comes again. A plan may: it
    is what is left to do after an error."""
    calls = Counter(map(_canonical_call, demonstration.calls))
    if calls and max(calls.values()) > 1:
        return FilterDecision(0, "a call comes again")
    thoughts = Counter(
        tuple(split_words(text)) for role, text in demonstration.blocks if role is ThoughtRole.THINK
    )
    repeated = (thought for thought, count in thoughts.items() if count > 1)
    if any(len(thought) >= MIN_REPEATED_WORDS for thought in repeated):
        return FilterDecision(0, "a thought comes again")
    return KEEP


def _canonical_call(action: ToolCall) -> str:
    """Return a call in a form that tells whether two are the same: those that differ in white space
    and capitals alone are."""
    normalised = {
        name: " ".join(value.lower().split()) if isinstance(value, str) else value
        for name, value in action.arguments.items()
    }
    return f"{action.tool} {json.dumps(normalised, sort_keys=True)}"


def drop_off_grammar(demonstration: Demonstration, context: FilterContext) -> FilterDecision:
    """Leave out chains that the recipe's dialect cannot write, or whose order of blocks breaks its
    grammar."""
    try:
        trajectory = encode_demonstration(
            demonstration.task, demonstration.steps, context.dialect, []
        )
    except UserError:
        return FilterDecision(0, f"the dialect {context.dialect.name} cannot write it")
    return FilterDecision(trajectory.well_formed, f"off the grammar of {context.dialect.name}")


class ReflectionFilter:
    """Filter that keeps every chain with a reflection, and this share of those without one."""

    def __init__(self, share: Annotated[float, Field(ge=0, le=1)]) -> None:
        self.share = share

    def __call__(self, demonstration: Demonstration, context: FilterContext) -> FilterDecision:
        return FilterDecision(
            demonstration.has_reflection or context.draw < self.share, "no reflection"
        )


class CorrectionFilter:
    """Filter that repeats chains with a right answer on whose way an error was found and
    repaired."""

    def __init__(self, times: Annotated[int, Field(ge=1, le=MAX_COPIES)] = 2) -> None:
        self.times = times

    async def __call__(
        self, demonstration: Demonstration, context: FilterContext
    ) -> FilterDecision:
        repaired = demonstration.has_repaired_error and await context.grade(demonstration) is True
        return FilterDecision(self.times if repaired else 1)


class NearDuplicateFilter:
    """Filter that leaves out a chain whose question is like an earlier one with the same answer.
    Questions with other answers differ in what matters, however alike their words are."""

    def __init__(self, similarity: Annotated[float, Field(gt=0, le=1)] = 0.8) -> None:
        self.indexes: defaultdict[frozenset[str], NearDuplicateIndex] = defaultdict(
            lambda: NearDuplicateIndex(similarity)
        )

    def __call__(self, demonstration: Demonstration, context: FilterContext) -> FilterDecision:
        index = self.indexes[frozenset(map(normalise_or_raw, demonstration.task.answers))]
        return FilterDecision(
            not index.check_and_add(demonstration.task.question), "like an earlier question"
        )


class ContaminationFilter:
    """Filter that leaves out chains whose questions share words with a question of a benchmark, and
    chains with a canary string.

    A question that shares `words` words in a row with one of the files is left out, and so is one
    with fewer words that stands in a file word by word.
    """

    def __init__(
        self,
        files: tuple[Path, ...] = (),
        words: PositiveInt = NGRAM_WORDS,
        canaries: tuple[str, ...] = (),
    ) -> None:
        """Raise UserError for a file that is missing, or holds no questions."""
        self.words = words
        self.canaries = canaries
        questions = (task.question for file in files for task in read_tasks(file, max_left_out=0.0))
        self.benchmark_ngrams = {
            ngram for question in questions for ngram in self._ngrams(question)
        }

    def _ngrams(self, text: str) -> Iterator[str]:
        """Yield all runs of so many words; the whole text if it has fewer."""
        found = split_words(text)
        for start in range(max(len(found) - self.words, 0) + 1):
            yield " ".join(found[start : start + self.words])

    def __call__(self, demonstration: Demonstration, context: FilterContext) -> FilterDecision:
        text = demonstration.text
        if has_canary(text) or any(canary in text for canary in self.canaries):
            return FilterDecision(0, "a canary string")
        is_contaminated = not self.benchmark_ngrams.isdisjoint(
            self._ngrams(demonstration.task.question)
        )
        return FilterDecision(not is_contaminated, "in a benchmark")
