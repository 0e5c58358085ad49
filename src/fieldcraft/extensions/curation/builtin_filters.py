"""Built-in filters of demonstrations: AFM's rules, near duplicates and benchmark contamination.

AFM: arXiv 2508.13167, section 3, which trains on programs with 50 tests or more on average, and
leaves out proof problems, whose answers cannot be compared; the other rules are in section 3.2.1.
Each filter returns (keep, reason), see `filters.py`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from fieldcraft.config.numbers import PositiveFraction, UnitFraction
from fieldcraft.data.decontamination import has_canary, make_shingles, normalise_text
from fieldcraft.data.program_tests import STDIN_TESTS_KEY, UNIT_TESTS_KEY
from fieldcraft.data.tasks import read_tasks
from fieldcraft.dialects.encoding import encode_demonstration
from fieldcraft.extensions.curation.filters import (
    KEEP,
    MAX_COPIES,
    Demonstration,
    FilterContext,
    FilterDecision,
)
from fieldcraft.records.reading import RecipeKeyError
from fieldcraft.records.tool_metrics import make_call_key
from fieldcraft.records.words import split_words
from fieldcraft.rewards.answers import normalise_or_raw
from fieldcraft.types import Task, ThoughtRole, UserError

MIN_REPEATED_WORDS = 8  # shorter thoughts, such as "I must search.", may be repeated
NGRAM_WORDS = 13  # words, as in GPT-3 (arXiv 2005.14165, appendix C)


class ComplexityFilter:
    """Filter that drops chains with too few interactions or calls; see
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
    """Filter that drops chains that call too few different tools."""

    def __init__(self, least: PositiveInt = 2) -> None:
        self.reason = f"fewer than {least} different tools"
        self.least = least

    def __call__(self, demonstration: Demonstration, context: FilterContext) -> FilterDecision:
        return FilterDecision(
            len({call.tool for call in demonstration.calls}) >= self.least, self.reason
        )


class HopsFilter:
    """Filter that drops chains with fewer than `least` or more than `most` hops; see
    `Demonstration.num_hops`."""

    def __init__(self, least: PositiveInt = 5, most: PositiveInt = 20) -> None:
        """Raise UserError for an empty range."""
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
    """Drop wrong answers and answers that cannot be graded."""
    if demonstration.answer is None:
        return FilterDecision(0, "no answer")
    is_correct = await context.grade(demonstration)
    return FilterDecision(
        is_correct is True, "it cannot be graded" if is_correct is None else "a wrong answer"
    )


def drop_redundant(demonstration: Demonstration, context: FilterContext) -> FilterDecision:
    """Drop chains that repeat a call or a long thought. Plans may be repeated: they list the
    remaining steps after an error."""
    calls = Counter(map(make_call_key, demonstration.calls))
    if calls and max(calls.values()) > 1:
        return FilterDecision(0, "a repeated call")
    thoughts = Counter(
        tuple(split_words(text)) for role, text in demonstration.blocks if role is ThoughtRole.THINK
    )
    repeated = (thought for thought, count in thoughts.items() if count > 1)
    if any(len(thought) >= MIN_REPEATED_WORDS for thought in repeated):
        return FilterDecision(0, "a repeated thought")
    return KEEP


def drop_off_grammar(demonstration: Demonstration, context: FilterContext) -> FilterDecision:
    """Drop chains that the recipe's dialect cannot render, or whose block order violates its
    grammar."""
    try:
        trajectory = encode_demonstration(
            demonstration.task, demonstration.steps, context.dialect, []
        )
    except UserError:
        return FilterDecision(0, f"the dialect {context.dialect.name} cannot write it")
    return FilterDecision(trajectory.well_formed, f"outside the grammar of {context.dialect.name}")


class ReflectionFilter:
    """Filter that accepts every chain with a reflection, and a fraction `share` of the others."""

    def __init__(self, share: UnitFraction) -> None:
        self.share = share

    def __call__(self, demonstration: Demonstration, context: FilterContext) -> FilterDecision:
        return FilterDecision(
            demonstration.has_reflection or context.draw < self.share, "no reflection"
        )


class CorrectionFilter:
    """Filter that repeats chains with a correct answer in which an error was found and
    repaired."""

    def __init__(self, times: Annotated[int, Field(ge=1, le=MAX_COPIES)] = 2) -> None:
        self.times = times

    async def __call__(
        self, demonstration: Demonstration, context: FilterContext
    ) -> FilterDecision:
        repaired = demonstration.has_repaired_error and await context.grade(demonstration) is True
        return FilterDecision(self.times if repaired else 1)


class NearDuplicateFilter:
    """Filter that drops a chain whose question is similar to an earlier one with the same answer.
    Questions with different answers differ, however similar their wording is."""

    def __init__(self, similarity: PositiveFraction = 0.8) -> None:
        self.indexes: defaultdict[frozenset[str], NearDuplicateIndex] = defaultdict(
            lambda: NearDuplicateIndex(similarity)
        )

    def __call__(self, demonstration: Demonstration, context: FilterContext) -> FilterDecision:
        index = self.indexes[frozenset(map(normalise_or_raw, demonstration.task.answers))]
        return FilterDecision(
            not index.check_and_add(demonstration.task.question), "similar to an earlier question"
        )


class ContaminationFilter:
    """Filter that drops chains whose questions overlap with a benchmark question, and chains with a
    canary string.

    A question is dropped if it shares `words` consecutive words with a question of the files, or if
    it has fewer words and occurs there verbatim.
    """

    def __init__(
        self,
        files: tuple[Path, ...] = (),
        words: PositiveInt = NGRAM_WORDS,
        canaries: tuple[str, ...] = (),
    ) -> None:
        """Raise UserError for a file that is missing or holds no questions."""
        self.words = words
        self.canaries = canaries
        questions = (task.question for file in files for task in _read_every_task(file))
        self.benchmark_ngrams = {
            ngram for question in questions for ngram in self._ngrams(question)
        }

    def _ngrams(self, text: str) -> Iterator[str]:
        """Yield all n-grams of `words` words, or the whole text if it is shorter."""
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


# -- filters that use only the question --------------------------------------------------------

_PROOF_PHRASE = re.compile(
    r"\b(?:prove|disprove|show that|demonstrate that|(?:give|write) an? (?:\w+ )?proof)\b", re.I
)
# An imperative occurs at the start of a sentence or clause.
_COMPUTATION_PHRASE = re.compile(
    r"\?|(?:\A|[.!:;,)$]\s*|\n\s*|\b(?:and|or|then|also|to)\s+)"
    r"(?:find|determine|compute|calculate|evaluate|solve|simplify|express|list|count|state)\b",
    re.I,
)


def _read_every_task(file: Path) -> list[Task]:
    """Return the questions of a file, of which none may be left out. Raises UserError."""
    try:
        return read_tasks(file, max_left_out=0.0)
    except RecipeKeyError as error:
        advice = "" if error.key == "max_left_out" else "give a file of questions"
        raise UserError(f"{error.problem}{advice}.") from error


class TestsFilter:
    """Filter that drops questions for programs with fewer than `least` tests. A question without
    tests asks for no program, and is accepted."""

    def __init__(self, least: PositiveInt = 50) -> None:
        self.least = least
        self.reason = f"fewer than {least} tests"

    def __call__(self, demonstration: Demonstration, context: FilterContext) -> FilterDecision:
        count = count_tests(demonstration.task)
        return FilterDecision(count is None or count >= self.least, self.reason)


def count_tests(task: Task) -> int | None:
    """Count the tests of a question for a program: inputs with their outputs, and assertions in
    unit tests, where a test without assertions counts once. Return None for a question without
    tests."""
    stdin, unit = task.meta.get(STDIN_TESTS_KEY), task.meta.get(UNIT_TESTS_KEY)
    if not stdin and not unit:
        return None
    return len(stdin or ()) + sum(map(_count_assertions, unit or ()))


def _count_assertions(test: str) -> int:
    try:
        nodes = ast.walk(ast.parse(test))
    except SyntaxError:
        return 1
    return max(1, sum(isinstance(node, ast.Assert) for node in nodes))


def drop_proofs(demonstration: Demonstration, context: FilterContext) -> FilterDecision:
    """Drop problems that ask for a proof, see `asks_for_proof`."""
    return FilterDecision(0, "a proof") if asks_for_proof(demonstration.task) else KEEP


def asks_for_proof(task: Task) -> bool:
    """Return whether a task asks for a proof. Either its type is `proof`, or its question says to
    prove or to show something and asks for nothing that could be compared: it has neither a
    question mark nor a clause that starts with find, determine, compute and the like. A question
    with tests asks for a program."""
    if "proof" in str(task.meta.get("type", "")).lower():
        return True
    asks = count_tests(task) is not None or _COMPUTATION_PHRASE.search(task.question)
    return not asks and _PROOF_PHRASE.search(task.question) is not None


# -- near duplicates ---------------------------------------------------------------------------

NUM_PERMUTATIONS = 128


class NearDuplicateIndex:
    """Index of texts that reports whether a text is similar to an earlier one.

    `similarity` is the Jaccard similarity of the sets of shingles of SHINGLE_CHARACTERS characters,
    over the words of a text followed by its mathematical symbols. It is estimated (Broder 1997):
    texts near the threshold may be missed.

    Raises UserError if datasketch is not installed.
    """

    def __init__(self, similarity: float) -> None:
        self._library = _import_datasketch()
        self._index = self._library.MinHashLSH(threshold=similarity, num_perm=NUM_PERMUTATIONS)
        self._exact_texts = set[
            str
        ]()  # the estimate finds equal texts with certainty; this is faster

    def check_and_add(self, text: str) -> bool:
        """Return whether a similar text was added before, and add this one."""
        normalised = normalise_text(text)
        if normalised in self._exact_texts:
            return True
        self._exact_texts.add(normalised)
        sketch = self._sketch(normalised)
        if self._index.query(sketch):
            return True
        self._index.insert(normalised, sketch)
        return False

    def _sketch(self, normalised: str) -> Any:
        sketch = self._library.MinHash(num_perm=NUM_PERMUTATIONS)
        sketch.update_batch(sorted(shingle.encode() for shingle in make_shingles(normalised)))
        return sketch


def _import_datasketch() -> ModuleType:
    try:
        import datasketch
    except ImportError as error:
        raise UserError(
            "the filter 'near_duplicates' needs the package datasketch: pip install"
            " 'fieldcraft[data]'."
        ) from error
    return datasketch
