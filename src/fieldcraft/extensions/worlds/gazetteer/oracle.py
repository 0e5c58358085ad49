"""Optimal answers to questions of the gazetteer, for a model that knows some of the facts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fieldcraft.data.passages import parse_results
from fieldcraft.data.world import OracleDecision, WorldOracle, merge_thoughts
from fieldcraft.extensions.worlds.gazetteer.articles import (
    FactKey,
    GazetteerCorpus,
    is_true,
    make_query,
    parse_article,
    render_statement,
)
from fieldcraft.extensions.worlds.gazetteer.facts import Gazetteer
from fieldcraft.extensions.worlds.gazetteer.geonames import Place
from fieldcraft.extensions.worlds.gazetteer.questions import (
    NUMERALS,
    CommonNeighbourQuestion,
    ComparisonQuestion,
    CountQuestion,
    GazetteerQuestion,
    parse_spec,
)
from fieldcraft.types import Answer, DemoStep, Observation, Task, Thought, ToolCall

GazetteerSearchRule = Callable[
    ["GazetteerProgress", FactKey], bool
]  # whether a chain searches for a fact
CAREFUL_SHARE = 0.5  # fraction of questions for which a wasteful teacher looks everything up


@dataclass
class GazetteerProgress:
    """Progress of a chain of thoughts and searches for a question.

    A fact is stated if a thought contains it after the preceding facts; wrong statements are
    ignored. `read` holds the true facts of observations.
    """

    world: Gazetteer
    corpus: GazetteerCorpus
    question: GazetteerQuestion
    stated: int = 0
    read: set[FactKey] = field(default_factory=set)
    concluded: bool = False
    last: DemoStep | None = None

    def add(self, step: DemoStep) -> None:
        """Process one more step."""
        match step:
            case Thought(text):
                self._read_thought(text)
            case Observation(text):
                self.read |= find_true_facts(self.world, text) | self._get_requested_facts()
        self.last = step

    def _get_requested_facts(self) -> set[FactKey]:
        """Return the facts of the place in the last search, so that no place is searched for twice,
        even if the search did not find its article."""
        query = self.last.arguments.get("query") if isinstance(self.last, ToolCall) else None
        name = str(query).rpartition(" ")[0]
        return self.world.get_article_facts(name) if name in self.world.places else set()

    def _read_thought(self, thought: str) -> None:
        facts, end = self.question.facts(), 0
        while self.stated < len(facts):
            sentence = render_fact(self.world, facts[self.stated])
            start = thought.find(sentence, end)
            if start < 0:
                return
            end = start + len(sentence)
            self.stated += 1
        self.concluded |= self.question.conclusion() in thought[end:]

    def next_step(self, search_rule: GazetteerSearchRule) -> DemoStep:
        """Return the next step, with a search if `search_rule` requires it. Raises ValueError after
        an answer."""
        if isinstance(self.last, Answer):
            raise ValueError("nothing follows an answer")
        if isinstance(self.last, ToolCall):
            return self.corpus.make_observation(self.last)
        facts = self.question.facts()
        if self.stated == len(facts):
            conclusion = self.question.conclusion()
            if conclusion and not self.concluded:
                return Thought(conclusion)
            return Answer(self.question.answer().text)
        fact = facts[self.stated]
        if not search_rule(self, fact):
            return Thought(render_fact(self.world, fact))
        intent = Thought(render_intention(fact[0]))
        has_intent = isinstance(self.last, Thought) and self.last.text.endswith(intent.text)
        return make_search_call(self.world, fact[0]) if has_intent else intent


def needs_search(progress: GazetteerProgress, fact: FactKey) -> bool:
    """Return whether a fact is neither known nor read."""
    return not progress.world.is_known(fact) and fact not in progress.read


def is_unread(progress: GazetteerProgress, fact: FactKey) -> bool:
    """Return whether a fact was not read, even if it is known."""
    return fact not in progress.read


@dataclass(frozen=True)
class GazetteerOracle(WorldOracle):
    """Oracle that states facts that the model knows or has read, and searches for the rest."""

    world: Gazetteer
    corpus: GazetteerCorpus

    def next_step(self, task: Task, history: Sequence[DemoStep]) -> DemoStep:
        progress = GazetteerProgress(self.world, self.corpus, get_question(self.world, task))
        for step in history:
            progress.add(step)
        return progress.next_step(needs_search)

    def optimal_calls(self, task: Task) -> int:
        return self.world.optimal_calls(get_question(self.world, task).facts())

    def guess(self, task: Task, rng: random.Random) -> list[DemoStep]:
        return make_guess(self.world, get_question(self.world, task), rng)

    def decisions(self, task: Task, rng: random.Random) -> Iterator[OracleDecision]:
        return iterate_decisions(self.world, self.corpus, get_question(self.world, task), rng)


def get_question(world: Gazetteer, task: Task) -> GazetteerQuestion:
    """Return the question of a task of this world."""
    return parse_spec(world, task.meta["asks"])


def make_steps(
    world: Gazetteer,
    corpus: GazetteerCorpus,
    question: GazetteerQuestion,
    search_rule: GazetteerSearchRule,
) -> list[DemoStep]:
    """Return all steps to the answer."""
    progress, steps = GazetteerProgress(world, corpus, question), list[DemoStep]()
    while not isinstance(progress.last, Answer):
        steps.append(progress.next_step(search_rule))
        progress.add(steps[-1])
    return merge_thoughts(steps)


def make_wasteful_steps(
    world: Gazetteer, corpus: GazetteerCorpus, question: GazetteerQuestion, rng: random.Random
) -> list[DemoStep]:
    """Return the steps of a teacher who looks everything up for half of the questions."""
    careful = rng.random() < CAREFUL_SHARE
    return make_steps(world, corpus, question, is_unread if careful else needs_search)


def make_guess(world: Gazetteer, question: GazetteerQuestion, rng: random.Random) -> list[DemoStep]:
    """Return steps without a search: unknown facts are guessed, and with one of them the answer,
    which is of the right kind."""
    thoughts = [Thought(_guess_fact(world, fact, rng)) for fact in question.facts()]
    if not all(map(world.is_known, question.facts())):
        return merge_thoughts([*thoughts, Answer(_guess_answer(world, question, rng))])
    conclusion = question.conclusion()
    thoughts += [Thought(conclusion)] if conclusion else []
    return merge_thoughts([*thoughts, Answer(question.answer().text)])


def _guess_answer(world: Gazetteer, question: GazetteerQuestion, rng: random.Random) -> str:
    """Return an answer of the kind that a question asks for."""
    name, relation = question.facts()[-1]
    match question:
        case ComparisonQuestion():
            return rng.choice(question.compared_places())
        case CountQuestion():
            return str(rng.randrange(len(NUMERALS)))
        case CommonNeighbourQuestion():
            return rng.choice(world.list_names("country", world.is_heldout(name)))
    return rng.choice(_list_alternatives(world, world.places[name], relation)).facts[relation].text


def _guess_fact(world: Gazetteer, fact: FactKey, rng: random.Random) -> str:
    """Return the statement of a fact, with another place's value if the fact is unknown."""
    place, relation = world.places[fact[0]], fact[1]
    if world.is_known(fact):
        return render_statement(place, relation)
    other = rng.choice(_list_alternatives(world, place, relation))
    wrong = replace(place, facts={**place.facts, relation: other.facts[relation]})
    return render_statement(wrong, relation)


def _list_alternatives(world: Gazetteer, place: Place, relation: str) -> list[Place]:
    """Return the places, equally held out or not, with another value of a relation: those of the
    same kind, or of any kind if these all have the same value, such as regions of one country."""
    is_heldout, own_value = world.is_heldout(place.name), place.facts[relation].text
    found = [
        other
        for name, other in world.places.items()
        if world.is_heldout(name) == is_heldout
        and relation in other.facts
        and other.facts[relation].text != own_value
    ]
    return [other for other in found if other.kind == place.kind] or found


def iterate_decisions(
    world: Gazetteer, corpus: GazetteerCorpus, question: GazetteerQuestion, rng: random.Random
) -> Iterator[OracleDecision]:
    """Yield the decisions along the optimal path. For a fact that is neither known nor read,
    searching is chosen over a guess. For a known fact, stating it is chosen over a needless search.
    At the end, answering is chosen over a needless search."""
    steps: list[DemoStep] = []
    read: set[FactKey] = set()
    for fact in question.facts():
        before = tuple(merge_thoughts(steps))
        known_thought = Thought(render_fact(world, fact))
        search_steps = (Thought(render_intention(fact[0])), make_search_call(world, fact[0]))
        if world.is_known(fact) or fact in read:
            yield OracleDecision(before, (known_thought,), search_steps)
        else:
            yield OracleDecision(before, search_steps, (Thought(_guess_fact(world, fact, rng)),))
            steps += [*search_steps, corpus.make_observation(search_steps[1])]
            read |= world.get_article_facts(fact[0])
        steps.append(known_thought)
    if question.conclusion():
        steps.append(Thought(question.conclusion()))
    name = question.facts()[0][0]
    needless = (Thought(render_intention(name)), make_search_call(world, name))
    yield OracleDecision(tuple(merge_thoughts(steps)), (Answer(question.answer().text),), needless)


# -- thoughts, searches, articles -----------------------------------------------------------------


def render_fact(world: Gazetteer, fact: FactKey) -> str:
    """Return the sentence that states a fact in a thought."""
    return render_statement(world.places[fact[0]], fact[1])


def render_intention(name: str) -> str:
    """Return the thought before a search for a place."""
    return f"I need to look up {name}."


def make_search_call(world: Gazetteer, name: str) -> ToolCall:
    """Return the call that finds the article of a place."""
    return ToolCall("search", {"query": make_query(world.places[name])})


def find_true_facts(world: Gazetteer, text: str) -> set[FactKey]:
    """Return the facts that search results state correctly."""
    return {
        fact
        for title, body in parse_results(text) or []
        for fact, value in parse_article(title, body).items()
        if is_true(world.places, fact, value)
    }
