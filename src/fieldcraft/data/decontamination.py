"""Questions of the evaluations of a run, which nothing may be trained on.

Questions are compared by their words and signs of mathematics (`duplicates.normalise_text`) and by
their ids. Near duplicates have a Jaccard similarity of their shingles of NEAR_DUPLICATE_SIMILARITY
or more. All of them are found, without a library: such texts share one of the rarest shingles of
each, so only those that do are compared in full (prefix filtering, Bayardo et al. 2007). A question
in a longer text is looked for by its first words, and one whose words are reordered by all of them:
in another order most of its shingles are others.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from fieldcraft.data.duplicates import make_shingles, normalise_text, strip_html
from fieldcraft.records.words import split_words
from fieldcraft.rewards.answers import normalise_or_raw
from fieldcraft.types import Task

IN_EVALUATION = "asked by an evaluation"
MIN_WORDS = 5  # words of a question that no other one holds by chance
NEAR_DUPLICATE_SIMILARITY = Fraction(4, 5)  # the default of the filter near_duplicates
# A place in a file, which another file numbers anew: 17, train_17, dev-17.
_POSITIONAL_ID = re.compile(
    r"(?:(?:train|dev|test|val|valid|validation)[-_]?)?\d{1,9}(?:#\d+)?", re.I
)


class QuestionMatch(NamedTuple):
    """A question that is trained on, and the one of an evaluation that it is like."""

    training_question: str
    evaluation_question: str


class EvaluationQuestions:
    """The questions that the evaluations of a run ask."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self._texts = {normalise_text(task.question) for task in tasks}
        self._by_id = {task.id: task for task in tasks if not _POSITIONAL_ID.fullmatch(task.id)}

    def __contains__(self, task: Task) -> bool:
        """Tell if an evaluation asks this question: the same words, or the same id. An id that is
        no more than a place in a file says nothing, because every file counts from the start."""
        return task.id in self._by_id or normalise_text(task.question) in self._texts

    def find_same_ids(self, tasks: Iterable[Task]) -> list[QuestionMatch]:
        """Return those that have the id of a question of an evaluation, and other words than any of
        them: they may be other questions, of files that give ids alike."""
        return [
            QuestionMatch(task.question, self._by_id[task.id].question)
            for task in tasks
            if task.id in self._by_id and normalise_text(task.question) not in self._texts
        ]

    def find_near_duplicates(self, tasks: Iterable[Task]) -> list[QuestionMatch]:
        """Return those that are like a question of an evaluation, have its words in another order
        or hold it word by word, as a prompt does that has an instruction around it. They share an
        accepted answer with it, or have none as it has none: questions with other answers differ in
        what matters, however alike their words are."""
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
    """Finder of questions with a shared answer whose Jaccard similarity is
    NEAR_DUPLICATE_SIMILARITY or more."""

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
        """Return the first question that is like this one, None without any."""
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
        """Return as many as a text that is like theirs cannot lack all of."""
        count = len(shingle_set) - math.ceil(NEAR_DUPLICATE_SIMILARITY * len(shingle_set)) + 1
        return sorted(shingle_set, key=lambda shingle: (self._frequency[shingle], shingle))[:count]


class _ReorderingFinder:
    """Finder of questions with a shared answer of the same MIN_WORDS words or more in another
    order."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._by_words = defaultdict[tuple[str, ...], list[Task]](list)
        for task in tasks:
            self._by_words[_sorted_words(task)].append(task)

    def find(self, task: Task) -> Task | None:
        """Return the first question of the same words as this one, None without any."""
        sorted_words = _sorted_words(task)
        others = self._by_words.get(sorted_words, ()) if len(sorted_words) >= MIN_WORDS else ()
        return next(
            (other for other in others if _comparable_answers(task) & _comparable_answers(other)),
            None,
        )


def _sorted_words(task: Task) -> tuple[str, ...]:
    return tuple(sorted(normalise_text(task.question).split()))


class _ContainmentFinder:
    """Finder of questions that hold another one of MIN_WORDS words or more as a whole."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._by_first_words = defaultdict[tuple[str, ...], list[tuple[list[str], Task]]](list)
        for task in tasks:
            question_words = split_words(strip_html(task.question))
            if len(question_words) >= MIN_WORDS:
                self._by_first_words[tuple(question_words[:MIN_WORDS])].append(
                    (question_words, task)
                )

    def find(self, task: Task) -> Task | None:
        """Return the first question that stands in this one, None without any. A demonstration
        may have no accepted answers; then the words suffice."""
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
    """Return accepted answers as they are compared; "" stands for none."""
    return set(map(normalise_or_raw, task.answers)) or {""}
