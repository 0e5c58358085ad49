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

from fieldcraft.data.duplicates import Alike
from fieldcraft.data.filters import KEPT, MOST_COPIES, Chain, FilterContext, Verdict
from fieldcraft.data.sources import read_tasks
from fieldcraft.dialects.demonstrations import encode_demonstration
from fieldcraft.records.words import words
from fieldcraft.rewards.answers import compared
from fieldcraft.types import Action, Role, UserError
from fieldcraft.web.blocking import has_canary

WORDS_OF_A_REPETITION = 8  # shorter thoughts, such as "I must search.", may come again
NGRAM = 13  # words, as in GPT-3 (arXiv 2005.14165, appendix C)


class Complexity:
    """Filter that leaves out chains with too few interactions (`Chain.interactions`), or with too
    few calls."""

    def __init__(
        self, least: PositiveInt = 5, count: Literal["interactions", "calls"] = "interactions"
    ) -> None:
        self.reason = f"fewer than {least} {count}"
        self.least = least
        self.count = count

    def __call__(self, chain: Chain, context: FilterContext) -> Verdict:
        found = len(chain.calls) if self.count == "calls" else chain.interactions
        return Verdict(found >= self.least, self.reason)


class ToolsFilter:
    """Filter that leaves out chains that call too few different tools."""

    def __init__(self, least: PositiveInt = 2) -> None:
        self.reason = f"fewer than {least} different tools"
        self.least = least

    def __call__(self, chain: Chain, context: FilterContext) -> Verdict:
        return Verdict(len({call.tool for call in chain.calls}) >= self.least, self.reason)


class HopsFilter:
    """Filter that leaves out chains with fewer than `least` or more than `most` hops; see
    `Chain.hops`."""

    def __init__(self, least: PositiveInt = 5, most: PositiveInt = 20) -> None:
        """Raise UserError for a range without any number in it."""
        if least > most:
            raise UserError(
                f"the filter 'hops' keeps nothing from {least} to {most}: raise its setting 'most'."
            )
        self.least, self.most = least, most

    def __call__(self, chain: Chain, context: FilterContext) -> Verdict:
        if chain.hops > self.most:
            return Verdict(0, f"more than {self.most} hops")
        return Verdict(chain.hops >= self.least, f"fewer than {self.least} hops")


async def wrong(chain: Chain, context: FilterContext) -> Verdict:
    """Leave out answers that are wrong, and those that nothing can grade."""
    if chain.answer is None:
        return Verdict(0, "no answer")
    right = await context.verdict(chain)
    return Verdict(right is True, "nothing can grade it" if right is None else "a wrong answer")


def redundant(chain: Chain, context: FilterContext) -> Verdict:
    """Leave out chains in which a call, or a thought of several words, comes again. A plan may: it
    is what is left to do after an error."""
    calls = Counter(map(_same_call, chain.calls))
    if calls and max(calls.values()) > 1:
        return Verdict(0, "a call comes again")
    thoughts = Counter(tuple(words(text)) for role, text in chain.blocks if role is Role.THINK)
    again = (thought for thought, count in thoughts.items() if count > 1)
    if any(len(thought) >= WORDS_OF_A_REPETITION for thought in again):
        return Verdict(0, "a thought comes again")
    return KEPT


def _same_call(action: Action) -> str:
    """Return a call in a form that tells whether two are the same: those that differ in white space
    and capitals alone are."""
    plain = {
        name: " ".join(value.lower().split()) if isinstance(value, str) else value
        for name, value in action.arguments.items()
    }
    return f"{action.tool} {json.dumps(plain, sort_keys=True)}"


def off_grammar(chain: Chain, context: FilterContext) -> Verdict:
    """Leave out chains that the recipe's dialect cannot write, or whose order of blocks breaks its
    grammar."""
    try:
        trajectory = encode_demonstration(chain.task, chain.steps, context.dialect, [])
    except UserError:
        return Verdict(0, f"the dialect {context.dialect.name} cannot write it")
    return Verdict(trajectory.well_formed, f"off the grammar of {context.dialect.name}")


class Reflection:
    """Filter that keeps every chain with a reflection, and this share of those without one."""

    def __init__(self, share: Annotated[float, Field(ge=0, le=1)]) -> None:
        self.share = share

    def __call__(self, chain: Chain, context: FilterContext) -> Verdict:
        return Verdict(chain.reflects or context.draw < self.share, "no reflection")


class Corrected:
    """Filter that repeats chains with a right answer on whose way an error was found and
    repaired."""

    def __init__(self, times: Annotated[int, Field(ge=1, le=MOST_COPIES)] = 2) -> None:
        self.times = times

    async def __call__(self, chain: Chain, context: FilterContext) -> Verdict:
        repaired = chain.corrects and await context.verdict(chain) is True
        return Verdict(self.times if repaired else 1)


class NearDuplicates:
    """Filter that leaves out a chain whose question is like an earlier one with the same answer.
    Questions with other answers differ in what matters, however alike their words are."""

    def __init__(self, similarity: Annotated[float, Field(gt=0, le=1)] = 0.8) -> None:
        self.seen: defaultdict[frozenset[str], Alike] = defaultdict(lambda: Alike(similarity))

    def __call__(self, chain: Chain, context: FilterContext) -> Verdict:
        alike = self.seen[frozenset(map(compared, chain.task.answers))]
        return Verdict(not alike.met(chain.task.question), "like an earlier question")


class Contaminated:
    """Filter that leaves out chains whose questions share words with a question of a benchmark, and
    chains with a canary string.

    A question that shares `words` words in a row with one of the files is left out, and so is one
    with fewer words that stands in a file word by word.
    """

    def __init__(
        self,
        files: tuple[Path, ...] = (),
        words: PositiveInt = NGRAM,
        canaries: tuple[str, ...] = (),
    ) -> None:
        """Raise UserError for a file that is missing, or holds no questions."""
        self.words = words
        self.canaries = canaries
        asked = (task.question for file in files for task in read_tasks(file, max_left_out=0.0))
        self.taken = {ngram for question in asked for ngram in self._ngrams(question)}

    def _ngrams(self, text: str) -> Iterator[str]:
        """Yield all runs of so many words; the whole text if it has fewer."""
        found = words(text)
        for start in range(max(len(found) - self.words, 0) + 1):
            yield " ".join(found[start : start + self.words])

    def __call__(self, chain: Chain, context: FilterContext) -> Verdict:
        text = chain.text
        if has_canary(text) or any(canary in text for canary in self.canaries):
            return Verdict(0, "a canary string")
        met = not self.taken.isdisjoint(self._ngrams(chain.task.question))
        return Verdict(not met, "in a benchmark")
