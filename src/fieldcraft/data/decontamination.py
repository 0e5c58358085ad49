"""Questions of the evaluations of a run, which nothing may be trained on.

Questions are compared by their words and signs of mathematics (`duplicates.normal_form`) and by
their ids. Near duplicates have a Jaccard similarity of their shingles of SIMILARITY or more. All of
them are found, without a library: such texts share one of the rarest shingles of each, so only
those that do are compared in full (prefix filtering, Bayardo et al. 2007). A question in a longer
text is looked for by its first words, and one whose words are reordered by all of them: in another
order most of its shingles are others.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from fieldcraft.data.duplicates import normal_form, shingles, without_markup
from fieldcraft.records.words import words
from fieldcraft.rewards.answers import compared
from fieldcraft.types import Task

ASKED = "asked by an evaluation"
LONG = 5  # words of a question that no other one holds by chance
SIMILARITY = Fraction(4, 5)  # the default of the filter near_duplicates
# A place in a file, which another file numbers anew: 17, train_17, dev-17.
_PLACE = re.compile(r"(?:(?:train|dev|test|val|valid|validation)[-_]?)?\d{1,9}(?:#\d+)?", re.I)


class Match(NamedTuple):
    """A question that is trained on, and the one of an evaluation that it is like."""

    trained: str
    asked: str


class EvaluationQuestions:
    """The questions that the evaluations of a run ask."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self._texts = {normal_form(task.question) for task in tasks}
        self._by_id = {task.id: task for task in tasks if not _PLACE.fullmatch(task.id)}

    def __contains__(self, task: Task) -> bool:
        """Tell if an evaluation asks this question: the same words, or the same id. An id that is
        no more than a place in a file says nothing, because every file counts from the start."""
        return task.id in self._by_id or normal_form(task.question) in self._texts

    def same_by_id(self, tasks: Iterable[Task]) -> list[Match]:
        """Return those that have the id of a question of an evaluation, and other words than any of
        them: they may be other questions, of files that give ids alike."""
        return [
            Match(task.question, self._by_id[task.id].question)
            for task in tasks
            if task.id in self._by_id and normal_form(task.question) not in self._texts
        ]

    def near_duplicates(self, tasks: Iterable[Task]) -> list[Match]:
        """Return those that are like a question of an evaluation, have its words in another order
        or hold it word by word, as a prompt does that has an instruction around it. They share an
        accepted answer with it, or have none as it has none: questions with other answers differ in
        what matters, however alike their words are."""
        finders = [
            kind(self.tasks) for kind in (_SimilarQuestions, _ReorderedQuestions, _HeldQuestions)
        ]
        found = (
            (t, next(filter(None, (finder.find(t) for finder in finders)), None))
            for t in tasks
            if t not in self
        )
        return [Match(task.question, near.question) for task, near in found if near is not None]


class _SimilarQuestions:
    """Finder of questions with a shared answer whose Jaccard similarity is SIMILARITY or more."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._shingles = [shingles(normal_form(task.question)) for task in tasks]
        self._frequency = Counter(shingle for each in self._shingles for shingle in each)
        self._places = defaultdict[str, defaultdict[str, list[int]]](lambda: defaultdict(list))
        for place, (task, own) in enumerate(zip(tasks, self._shingles, strict=True)):
            for answer, shingle in product(_answers(task), self._rarest(own)):
                self._places[answer][shingle].append(place)

    def find(self, task: Task) -> Task | None:
        """Return the first question that is like this one, None without any."""
        answers = _answers(task) & self._places.keys()
        if not answers:
            return None
        own = shingles(normal_form(task.question))
        some = product(answers, self._rarest(own))
        places = {place for a, shingle in some for place in self._places[a].get(shingle, ())}
        for place in sorted(places):
            other = self._shingles[place]
            if len(own & other) >= SIMILARITY * len(own | other):
                return self._tasks[place]
        return None

    def _rarest(self, some: set[str]) -> list[str]:
        """Return as many as a text that is like theirs cannot lack all of."""
        count = len(some) - math.ceil(SIMILARITY * len(some)) + 1
        return sorted(some, key=lambda shingle: (self._frequency[shingle], shingle))[:count]


class _ReorderedQuestions:
    """Finder of questions with a shared answer of the same LONG words or more in another order."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._by_words = defaultdict[tuple[str, ...], list[Task]](list)
        for task in tasks:
            self._by_words[_sorted_words(task)].append(task)

    def find(self, task: Task) -> Task | None:
        """Return the first question of the same words as this one, None without any."""
        own = _sorted_words(task)
        others = self._by_words.get(own, ()) if len(own) >= LONG else ()
        return next((other for other in others if _answers(task) & _answers(other)), None)


def _sorted_words(task: Task) -> tuple[str, ...]:
    return tuple(sorted(normal_form(task.question).split()))


class _HeldQuestions:
    """Finder of questions that hold another one of LONG words or more as a whole."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._by_begin = defaultdict[tuple[str, ...], list[tuple[list[str], Task]]](list)
        for task in tasks:
            held = words(without_markup(task.question))
            if len(held) >= LONG:
                self._by_begin[tuple(held[:LONG])].append((held, task))

    def find(self, task: Task) -> Task | None:
        """Return the first question that stands in this one, None without any. A demonstration
        may have no accepted answers; then the words suffice."""
        own = words(without_markup(task.question))
        for place in range(len(own) - LONG + 1):
            for held, other in self._by_begin.get(tuple(own[place : place + LONG]), ()):
                same = own[place : place + len(held)] == held
                if same and (not task.answers or _answers(task) & _answers(other)):
                    return other
        return None


def _answers(task: Task) -> set[str]:
    """Return accepted answers as they are compared; "" stands for none."""
    return set(map(compared, task.answers)) or {""}
