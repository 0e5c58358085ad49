"""The best way to answer a question of the gazetteer, for a model that knows some of the facts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fieldcraft.tools.search.passages import read_results
from fieldcraft.types import Action, Answer, Observation, Step, Task, Thought
from fieldcraft.worlds import base
from fieldcraft.worlds.base import Decision, merge_thoughts
from fieldcraft.worlds.gazetteer.articles import Fact, is_true, query_for, read_article
from fieldcraft.worlds.gazetteer.articles import statement as state
from fieldcraft.worlds.gazetteer.corpus import Corpus
from fieldcraft.worlds.gazetteer.facts import Gazetteer
from fieldcraft.worlds.gazetteer.geonames import Place
from fieldcraft.worlds.gazetteer.questions import Question, read_question

Searches = Callable[["Progress", Fact], bool]  # whether a chain searches for a fact
CAREFUL_SHARE = 0.5  # of the questions for which a wasteful teacher looks everything up


@dataclass
class Progress:
    """Progress of a chain of thoughts and searches with a question.

    A fact is stated if a thought says it after the facts before it; wrong statements change
    nothing. `read` are the true facts of observations.
    """

    world: Gazetteer
    corpus: Corpus
    question: Question
    stated: int = 0
    read: set[Fact] = field(default_factory=set)
    concluded: bool = False
    last: Step | None = None

    def take(self, step: Step) -> None:
        """Take one more step."""
        match step:
            case Thought(text):
                self._hear(text)
            case Observation(text):
                self.read |= facts_in(self.world, text) | self._asked_for()
        self.last = step

    def _asked_for(self) -> set[Fact]:
        """Return the facts of the place that the last step searches for: nobody searches for it
        twice, even where the search did not find its article."""
        query = self.last.arguments.get("query") if isinstance(self.last, Action) else None
        name = str(query).rpartition(" ")[0]
        return self.world.reveals(name) if name in self.world.places else set()

    def _hear(self, thought: str) -> None:
        facts, end = self.question.facts(), 0
        while self.stated < len(facts):
            said = statement(self.world, facts[self.stated])
            start = thought.find(said, end)
            if start < 0:
                return
            end = start + len(said)
            self.stated += 1
        self.concluded |= self.question.conclusion() in thought[end:]

    def next_step(self, must_search: Searches) -> Step:
        """Return the next step, with a search if `must_search` says so. Raises ValueError after an
        answer."""
        if isinstance(self.last, Answer):
            raise ValueError("nothing follows an answer")
        if isinstance(self.last, Action):
            return self.corpus.found_by(self.last)
        facts = self.question.facts()
        if self.stated == len(facts):
            conclusion = self.question.conclusion()
            if conclusion and not self.concluded:
                return Thought(conclusion)
            return Answer(self.question.answer().text)
        fact = facts[self.stated]
        if not must_search(self, fact):
            return Thought(statement(self.world, fact))
        intent = Thought(intention(fact[0]))
        meant = isinstance(self.last, Thought) and self.last.text.endswith(intent.text)
        return search_for(self.world, fact[0]) if meant else intent


def is_needed(progress: Progress, fact: Fact) -> bool:
    """Return whether a fact is neither known nor read."""
    return not progress.world.knows(fact) and fact not in progress.read


def is_unread(progress: Progress, fact: Fact) -> bool:
    """Return whether a fact was not read, even if it is known."""
    return fact not in progress.read


@dataclass(frozen=True)
class GazetteerOracle(base.Oracle):
    """Oracle that states what the model knows or has read, and searches for the rest."""

    world: Gazetteer
    corpus: Corpus

    def next_step(self, task: Task, so_far: Sequence[Step]) -> Step:
        progress = Progress(self.world, self.corpus, question_of(self.world, task))
        for step in so_far:
            progress.take(step)
        return progress.next_step(is_needed)

    def least_calls(self, task: Task) -> int:
        return self.world.least_calls(question_of(self.world, task).facts())

    def guess(self, task: Task, rng: random.Random) -> list[Step]:
        return guess(self.world, question_of(self.world, task), rng)

    def decisions(self, task: Task, rng: random.Random) -> Iterator[Decision]:
        return decisions(self.world, self.corpus, question_of(self.world, task), rng)


def question_of(world: Gazetteer, task: Task) -> Question:
    """Return the question of a task of this world."""
    return read_question(world, task.meta["asks"])


def steps_to_answer(
    world: Gazetteer, corpus: Corpus, question: Question, must_search: Searches
) -> list[Step]:
    """Return the whole way to the answer."""
    progress, steps = Progress(world, corpus, question), list[Step]()
    while not isinstance(progress.last, Answer):
        steps.append(progress.next_step(must_search))
        progress.take(steps[-1])
    return merge_thoughts(steps)


def wasteful(
    world: Gazetteer, corpus: Corpus, question: Question, rng: random.Random
) -> list[Step]:
    """Return the way of a teacher who looks everything up for half of the questions."""
    careful = rng.random() < CAREFUL_SHARE
    return steps_to_answer(world, corpus, question, is_unread if careful else is_needed)


def guess(world: Gazetteer, question: Question, rng: random.Random) -> list[Step]:
    """Return the way without a search: what is not known is guessed, and the answer is of the right
    kind."""
    said = [Thought(_guessed(world, fact, rng)) for fact in question.facts()]
    name, relation = question.facts()[-1]
    same = _like(world, world.places[name], relation)
    return merge_thoughts([*said, Answer(rng.choice(same).facts[relation].text)])


def _guessed(world: Gazetteer, fact: Fact, rng: random.Random) -> str:
    """Return a fact as it is stated: rightly if it is known, else with a value of another place."""
    place, relation = world.places[fact[0]], fact[1]
    if world.knows(fact):
        return state(place, relation)
    other = rng.choice(_like(world, place, relation))
    wrong = replace(place, facts={**place.facts, relation: other.facts[relation]})
    return state(wrong, relation)


def _like(world: Gazetteer, place: Place, relation: str) -> list[Place]:
    """Return the places of the same side and kind whose value of a relation is another one."""
    side = world.of_kind(place.kind, world.is_heldout(place.name))
    own = place.facts[relation].text
    found = [world.places[name] for name in side if world.has(name, relation)]
    return [other for other in found if other.facts[relation].text != own]


def decisions(
    world: Gazetteer, corpus: Corpus, question: Question, rng: random.Random
) -> Iterator[Decision]:
    """Yield the decisions along the best way. For a fact that is neither known nor read, searching
    is chosen over a guess. For one that is known, stating it is chosen over a needless search. At
    the end, the answer is chosen over one."""
    steps: list[Step] = []
    read: set[Fact] = set()
    for fact in question.facts():
        before = tuple(merge_thoughts(steps))
        said = Thought(statement(world, fact))
        searching = (Thought(intention(fact[0])), search_for(world, fact[0]))
        if world.knows(fact) or fact in read:
            yield Decision(before, (said,), searching)
        else:
            yield Decision(before, searching, (Thought(_guessed(world, fact, rng)),))
            steps += [*searching, corpus.found_by(searching[1])]
            read |= world.reveals(fact[0])
        steps.append(said)
    if question.conclusion():
        steps.append(Thought(question.conclusion()))
    name = question.facts()[0][0]
    needless = (Thought(intention(name)), search_for(world, name))
    yield Decision(tuple(merge_thoughts(steps)), (Answer(question.answer().text),), needless)


# -- thoughts, searches, articles -----------------------------------------------------------------


def statement(world: Gazetteer, fact: Fact) -> str:
    """Return the sentence by which a thought states a fact."""
    return state(world.places[fact[0]], fact[1])


def intention(name: str) -> str:
    """Return the thought before a search for a place."""
    return f"I need to look up {name}."


def search_for(world: Gazetteer, name: str) -> Action:
    """Return the call that finds the article of a place."""
    return Action("search", {"query": query_for(world.places[name])})


def facts_in(world: Gazetteer, text: str) -> set[Fact]:
    """Return the facts that search results state as they are."""
    return {
        fact
        for title, told in read_results(text) or []
        for fact, value in read_article(title, told).items()
        if is_true(world.places, fact, value)
    }
