"""Draws of questions: those of training, and those of each split of an evaluation."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from fieldcraft.types import Task
from fieldcraft.worlds.gazetteer.facts import Gazetteer
from fieldcraft.worlds.gazetteer.questions import (
    Chain,
    Comparison,
    ComparisonOfCountries,
    Count,
    Meeting,
    Question,
)

HOPS = (1, 2, 3)
KINDS = {"chain": 0.7, "comparison": 0.12, "count": 0.08, "meeting": 0.1}  # shares of questions
STARTS = {"city": 0.6, "country": 0.25, "region": 0.15}  # shares of the first places of chains
RESERVED_PAIRS = {("capital", "time_zone"), ("region", "largest_city")}  # never trained
SHOWN_PART = 3  # every third question of the training region may be demonstrated
TRIES = 60  # for each question that is asked for
QUESTIONS = 1000  # distinct questions of training: of more, most would be comparisons
SPLITS = {
    "heldout": "Held-out places, asked as in training",
    "wordings": "The same in wordings never trained",
    "unseen_chains": "Held-out places, relation chains never trained",
    "four_hops": "Held-out places, one fact more than in training",
    "known": "Held-out places, all facts known to the model",
    "mixed": "Held-out places, some facts known to the model",
    "train": "Questions of training",
}


@dataclass(frozen=True)
class Drawer:
    """Source of random questions about the places of one side: those that are held out, or all
    others. The share `known` of the questions that `trained` draws is about known facts alone,
    beside those that happen to be."""

    world: Gazetteer
    heldout: bool
    known: float = 0.0

    def chain(self, rng: random.Random, hops: int) -> Question | None:
        [kind] = rng.choices([*STARTS], [*STARTS.values()])
        start = rng.choice(self.world.of_kind(kind, self.heldout))
        chains = [*self.world.chains_from(start, hops)]
        return Chain(self.world, start, rng.choice(chains)) if chains else None

    def comparison(self, rng: random.Random) -> Question:
        relation, kind = rng.choice(
            (("population", "city"), ("population", "country"), ("area", "country"))
        )
        first, second = rng.sample(self.world.of_kind(kind, self.heldout), 2)
        return Comparison(self.world, relation, first, second)

    def comparison_of_countries(self, rng: random.Random) -> Question | None:
        first, second = rng.sample(self.world.of_kind("city", self.heldout), 2)
        if self.world.places[first].country == self.world.places[second].country:
            return None
        relation = rng.choice(("population", "area"))
        return ComparisonOfCountries(self.world, relation, first, second)

    def four_facts(self, rng: random.Random) -> Question | None:
        chain = rng.random() < 0.5
        return self.chain(rng, 4) if chain else self.comparison_of_countries(rng)

    def count(self, rng: random.Random) -> Question:
        return Count(self.world, rng.choice(self.world.of_kind("country", self.heldout)))

    def meeting(self, rng: random.Random) -> Question | None:
        first = rng.choice(self.world.of_kind("country", self.heldout))
        around = self.world.value((first, "neighbours")).members
        farther = {
            other
            for name in around
            if name in self.world.places
            for other in self.world.value((name, "neighbours")).members
        }
        names = sorted((farther - {first}) & self.world.places.keys())
        found = Meeting(self.world, first, rng.choice(names)) if names else None
        return found if found is not None and found.is_clear else None

    def any(self, rng: random.Random) -> Question | None:
        """Draw a question of any kind, with as many facts as in training."""
        [kind] = rng.choices([*KINDS], [*KINDS.values()])
        match kind:
            case "comparison":
                return self.comparison(rng)
            case "count":
                return self.count(rng)
            case "meeting":
                return self.meeting(rng)
        return self.chain(rng, rng.choice(HOPS))

    def trained(self, rng: random.Random) -> Question | None:
        """Draw a question of any kind, or one that needs no call, by the share `known`."""
        if self.known and self.world.rates and rng.random() < self.known:
            for _ in range(TRIES):
                question = self.any(rng)
                if question is not None and is_known(question):
                    return question
        return self.any(rng)

    def on_its_side(self, question: Question) -> bool:
        """Return whether all places of a question are of this side, the answer too."""
        return all(self.world.is_heldout(name) == self.heldout for name in question.places)

    def draws(
        self,
        rng: random.Random,
        count: int,
        draw: Callable[[random.Random], Question | None],
        holds: Callable[[Question], bool],
    ) -> Iterator[Question]:
        """Yield up to `count` distinct questions for which something holds."""
        found: set[str] = set()
        for _ in range(TRIES * count):
            if len(found) == count:
                return
            question = draw(rng)
            if question is None or question.name in found or not self.on_its_side(question):
                continue
            if holds(question):
                found.add(question.name)
                yield question


def is_known(question: Question) -> bool:
    """Return whether the model knows all facts of a question."""
    return question.world.least_calls(question.facts()) == 0


def has_reserved_pair(question: Question) -> bool:
    """Return whether two relations follow one another that training never chains."""
    relations = question.relations if isinstance(question, Chain) else ()
    return not RESERVED_PAIRS.isdisjoint(pairwise(relations))


def is_shown(question: Question) -> bool:
    """Return whether a question of the training region may be demonstrated; the others are left to
    reinforcement learning."""
    return zlib.crc32(question.name.encode()) % SHOWN_PART == 0


def demonstrated(
    world: Gazetteer, rng: random.Random, count: int, known: float = 0.0
) -> Iterator[Question]:
    """Yield the questions to demonstrate, each as often as it is drawn."""
    drawer = Drawer(world, heldout=False, known=known)
    while count:
        question = drawer.trained(rng)
        if question is None or has_reserved_pair(question) or not is_shown(question):
            continue
        if drawer.on_its_side(question):
            count -= 1
            yield question


def training_tasks(world: Gazetteer, seed: int, count: int, known: float = 0.0) -> list[Task]:
    """Return up to `count` distinct questions of reinforcement learning, at most `QUESTIONS`."""
    rng, drawer = random.Random(f"tasks:{seed}"), Drawer(world, heldout=False, known=known)
    asked = drawer.draws(
        rng,
        min(count, QUESTIONS),
        drawer.trained,
        lambda q: not has_reserved_pair(q) and not is_shown(q),
    )
    return [question.task("train", question.trained_wording(rng)) for question in asked]


def evaluation_tasks(world: Gazetteer, seed: int, split: str, count: int) -> list[Task]:
    """Return up to `count` distinct questions of a split about held-out places: no training names
    one of them."""
    rng, drawer = random.Random(f"{split}:{seed}"), Drawer(world, heldout=True)
    draw, holds = _rule(drawer, split)
    choose = Question.reserved_wording if split == "wordings" else Question.trained_wording
    asked = drawer.draws(rng, count, draw, holds)
    return [question.task(split, choose(question, rng)) for question in asked]


Draw = Callable[[random.Random], Question | None]


def _rule(drawer: Drawer, split: str) -> tuple[Draw, Callable[[Question], bool]]:
    """Return the draw of the questions of a split, and the condition that holds for them."""
    world = drawer.world
    match split:
        case "unseen_chains":
            return lambda rng: drawer.chain(rng, rng.choice(HOPS[1:])), has_reserved_pair
        case "four_hops":
            return drawer.four_facts, lambda _: True
        case "known":
            return drawer.any, is_known
        case "mixed":
            return drawer.any, lambda question: _is_mixed(world, question)
    return drawer.any, lambda question: not has_reserved_pair(question)


def _is_mixed(world: Gazetteer, question: Question) -> bool:
    known = [world.knows(fact) for fact in question.facts()]
    return any(known) and not all(known)
