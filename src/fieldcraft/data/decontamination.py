"""Decontamination: detection of training questions that occur in the evaluations of a run.

Questions are compared by their words and mathematical symbols (`normalise_text`) and by
their ids. Near duplicates have a Jaccard similarity of their shingles of at least
NEAR_DUPLICATE_SIMILARITY. All of them are found, without a library: such texts share one of their
rarest shingles, so only texts that do are compared in full (prefix filtering, Bayardo et al. 2007).
Questions inside a longer text are found by their first words, and questions with reordered words by
the multiset of their words, because reordering changes most shingles.
"""

from __future__ import annotations

import hashlib
import html
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from fieldcraft.records.words import split_words
from fieldcraft.rewards.answers import normalise_or_raw
from fieldcraft.types import Task

IN_EVALUATION = "asked by an evaluation"
GOLD_PASSAGES_KEY = "gold_passages"  # metadata key of the hashes of texts with the answer
MIN_WORDS = 5  # minimum length of a question that other questions do not contain by chance
NEAR_DUPLICATE_SIMILARITY = Fraction(4, 5)  # the default of the filter near_duplicates
# A position in a file, which is not unique across files: 17, train_17, dev-17.
_POSITIONAL_ID = re.compile(
    r"(?:(?:train|dev|test|val|valid|validation)[-_]?)?\d{1,9}(?:#\d+)?", re.I
)

# Authors of benchmarks add this text and a number to their files, so that copies can be found.
_CANARY = re.compile(r"canary[\s_-]+guid", re.IGNORECASE)


class QuestionMatch(NamedTuple):
    """A training question, and the evaluation question that it matches."""

    training_question: str
    evaluation_question: str


class EvaluationQuestions:
    """Questions of the evaluations of a run."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self._texts = {normalise_text(task.question) for task in tasks}
        self._by_id = {task.id: task for task in tasks if not _POSITIONAL_ID.fullmatch(task.id)}

    def __contains__(self, task: Task) -> bool:
        """Return whether an evaluation asks this question: with the same words, or the same id. An
        id that is only a position in a file is ignored, because every file counts from the
        start."""
        return task.id in self._by_id or normalise_text(task.question) in self._texts

    def find_same_ids(self, tasks: Iterable[Task]) -> list[QuestionMatch]:
        """Return the questions that share their id, but not their words, with an evaluation
        question: they may be different questions, from files with colliding ids."""
        return [
            QuestionMatch(task.question, self._by_id[task.id].question)
            for task in tasks
            if task.id in self._by_id and normalise_text(task.question) not in self._texts
        ]

    def find_near_duplicates(self, tasks: Iterable[Task]) -> list[QuestionMatch]:
        """Return the questions that are similar to an evaluation question, reorder its words or
        contain it verbatim, such as a prompt with an instruction. They share an accepted answer
        with it, or neither has any: questions with different answers differ, however similar their
        wording is."""
        finders = [
            kind(self.tasks) for kind in (_SimilarityFinder, _ReorderingFinder, _ContainmentFinder)
        ]
        found = (
            (t, next(filter(None, (finder.find(t) for finder in finders)), None))
            for t in tasks
            if t not in self
        )
        return [
            QuestionMatch(task.question, near.question) for task, near in found if near is not None
        ]


class _SimilarityFinder:
    """Finder of questions with a shared answer and a Jaccard similarity of at least
    NEAR_DUPLICATE_SIMILARITY."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._shingles = [make_shingles(normalise_text(task.question)) for task in tasks]
        self._frequency = Counter(shingle for each in self._shingles for shingle in each)
        self._indices_by_answer = defaultdict[str, defaultdict[str, list[int]]](
            lambda: defaultdict(list)
        )
        for index, (task, shingle_set) in enumerate(zip(tasks, self._shingles, strict=True)):
            for answer, shingle in product(_comparable_answers(task), self._rarest(shingle_set)):
                self._indices_by_answer[answer][shingle].append(index)

    def find(self, task: Task) -> Task | None:
        """Return the first similar question, or None."""
        answers = _comparable_answers(task) & self._indices_by_answer.keys()
        if not answers:
            return None
        shingle_set = make_shingles(normalise_text(task.question))
        rare_pairs = product(answers, self._rarest(shingle_set))
        indices = {
            index
            for a, shingle in rare_pairs
            for index in self._indices_by_answer[a].get(shingle, ())
        }
        for index in sorted(indices):
            other = self._shingles[index]
            if len(shingle_set & other) >= NEAR_DUPLICATE_SIMILARITY * len(shingle_set | other):
                return self._tasks[index]
        return None

    def _rarest(self, shingle_set: set[str]) -> list[str]:
        """Return so many of the rarest shingles that any similar text shares at least one."""
        count = len(shingle_set) - math.ceil(NEAR_DUPLICATE_SIMILARITY * len(shingle_set)) + 1
        return sorted(shingle_set, key=lambda shingle: (self._frequency[shingle], shingle))[:count]


class _ReorderingFinder:
    """Finder of questions with a shared answer and the same words, at least MIN_WORDS, in another
    order."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._by_words = defaultdict[tuple[str, ...], list[Task]](list)
        for task in tasks:
            self._by_words[_sorted_words(task)].append(task)

    def find(self, task: Task) -> Task | None:
        """Return the first question with the same words, or None."""
        sorted_words = _sorted_words(task)
        others = self._by_words.get(sorted_words, ()) if len(sorted_words) >= MIN_WORDS else ()
        return next(
            (other for other in others if _comparable_answers(task) & _comparable_answers(other)),
            None,
        )


def _sorted_words(task: Task) -> tuple[str, ...]:
    return tuple(sorted(normalise_text(task.question).split()))


class _ContainmentFinder:
    """Finder of questions that contain a whole other question of at least MIN_WORDS words."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._by_first_words = defaultdict[tuple[str, ...], list[tuple[list[str], Task]]](list)
        for task in tasks:
            question_words = split_words(strip_html(task.question))
            if len(question_words) >= MIN_WORDS:
                self._by_first_words[tuple(question_words[:MIN_WORDS])].append(
                    (question_words, task)
                )

    def find(self, task: Task) -> Task | None:
        """Return the first question that is contained in this one, or None. A demonstration may
        have no accepted answers; then the words suffice."""
        own_words = split_words(strip_html(task.question))
        for start in range(len(own_words) - MIN_WORDS + 1):
            for question_words, other in self._by_first_words.get(
                tuple(own_words[start : start + MIN_WORDS]), ()
            ):
                same = own_words[start : start + len(question_words)] == question_words
                if same and (
                    not task.answers or _comparable_answers(task) & _comparable_answers(other)
                ):
                    return other
        return None


def _comparable_answers(task: Task) -> set[str]:
    """Return the accepted answers, normalised for comparison, or {""} if there are none."""
    return set(map(normalise_or_raw, task.answers)) or {""}


class EvaluationPassages:
    """Passages with the answers of evaluation questions, as far as their metadata names them: by
    title (`gold_titles`) or by text (`gold_passages`, see `hash_passage`)."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        metas = [task.meta for task in tasks]
        self._titles = {normalise_text(t) for meta in metas for t in meta.get("gold_titles") or ()}
        self._hashes = {found for meta in metas for found in meta.get(GOLD_PASSAGES_KEY) or ()}

    def __contains__(self, passage: tuple[str, str]) -> bool:
        """Return whether a title and a text are those of such a passage."""
        title, text = passage
        return normalise_text(title) in self._titles or hash_passage(text) in self._hashes


def hash_passage(text: str) -> str:
    """Return a hash that is equal for texts with the same words."""
    return hashlib.sha256(normalise_text(text).encode(errors="replace")).hexdigest()[:16]


def has_canary(text: str) -> bool:
    """Return whether a text contains the canary that marks copies of a benchmark."""
    return _CANARY.search(text) is not None


# -- texts -------------------------------------------------------------------------------------

SHINGLE_CHARACTERS = 5  # per shingle
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z]\w{1,31});")
_ATTRIBUTES = r"(?:\s+[\w:-]+\s*=\s*(?:\"[^\"]*\"|'[^']*'))*\s*/?"
_BLOCK = re.compile(rf"</?(?:p|br|hr|div|ul|ol|li|table|tr|td|th|h[1-6]|pre){_ATTRIBUTES}>", re.I)
_INLINE = re.compile(
    rf"</?(?:b|i|u|s|a|em|strong|small|sub|sup|span|font|code|q){_ATTRIBUTES}>", re.I
)
_MATH_SIGNS = re.compile(r"[-+*/^<>=%\u2212\u00d7]")  # 5 > 3 and 5 < 3 have the same words


def strip_html(text: str) -> str:
    """Return a text as an HTML page renders it: without tags, and with entities such as &quot;
    decoded, even if they were escaped more than once."""
    while (plain := _ENTITY.sub(lambda found: html.unescape(found[0]), text)) != text:
        text = plain
    return _INLINE.sub("", _BLOCK.sub(" ", text))


def normalise_text(text: str) -> str:
    """Return the words of a text followed by its mathematical symbols: equal for texts that differ
    only in case, punctuation, accents, white space and HTML markup."""
    text = strip_html(text)
    return " ".join([*split_words(text), *_MATH_SIGNS.findall(text)]) or text.strip()


def make_shingles(normalised: str) -> set[str]:
    """Return all substrings of SHINGLE_CHARACTERS characters of a normalised text."""
    last = max(len(normalised) - SHINGLE_CHARACTERS, 0)
    return {normalised[start : start + SHINGLE_CHARACTERS] for start in range(last + 1)}
