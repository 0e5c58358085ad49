"""Sampling of questions for training and for each split of an evaluation."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

from fieldcraft.extensions.worlds.distinct import (
    MAX_FAILURES,
    TRIES_PER_QUESTION,
    draw_distinct_items,
)
from fieldcraft.extensions.worlds.gazetteer.facts import Gazetteer
from fieldcraft.extensions.worlds.gazetteer.questions import (
    ChainQuestion,
    CommonNeighbourQuestion,
    ComparisonQuestion,
    CountQuestion,
    CountryComparisonQuestion,
    GazetteerQuestion,
)
from fieldcraft.types import Task

NUM_HOPS = (1, 2, 3)
KIND_SHARES = {
    "chain": 0.7,
    "comparison": 0.12,
    "count": 0.08,
    "meeting": 0.1,
}  # fractions of the questions
START_SHARES = {
    "city": 0.6,
    "country": 0.25,
    "region": 0.15,
}  # fractions of the first places of chains
RESERVED_PAIRS = {("capital", "time_zone"), ("region", "largest_city")}  # never trained
DEMONSTRABLE_ONE_IN = 3  # every third question of the training region may be demonstrated
MAX_TRAIN_TASKS = 1000  # distinct training questions; most of any more would be comparisons
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
class QuestionSampler:
    """Sampler of random questions about held-out places, or about all others. The fraction `known`
    of the questions drawn by `draw_trained` is about known facts only, in addition to those that
    are so by chance."""

    world: Gazetteer
    heldout: bool
    known: float = 0.0

    def _list_names(self, kind: str) -> list[str]:
        """Return the names of a kind on this side."""
        return self.world.list_names(kind, self.heldout)

    def draw_chain(self, rng: random.Random, hops: int) -> GazetteerQuestion | None:
        # Only seven countries have regions, so a side may have none.
        names = {kind: found for kind in START_SHARES if (found := self._list_names(kind))}
        if not names:
            return None
        [kind] = rng.choices([*names], [START_SHARES[kind] for kind in names])
        start = rng.choice(names[kind])
        chains = [*self.world.iterate_chains(start, hops)]
        return ChainQuestion(self.world, start, rng.choice(chains)) if chains else None

    def draw_comparison(self, rng: random.Random) -> GazetteerQuestion | None:
        relation, kind = rng.choice(
            (("population", "city"), ("population", "country"), ("area", "country"))
        )
        names = self._list_names(kind)
        if len(names) < 2:
            return None
        return ComparisonQuestion(self.world, relation, *rng.sample(names, 2))

    def draw_country_comparison(self, rng: random.Random) -> GazetteerQuestion | None:
        names = self._list_names("city")
        if len(names) < 2:
            return None
        first, second = rng.sample(names, 2)
        if self.world.places[first].country == self.world.places[second].country:
            return None
        relation = rng.choice(("population", "area"))
        return CountryComparisonQuestion(self.world, relation, first, second)

    def draw_four_facts(self, rng: random.Random) -> GazetteerQuestion | None:
        is_chain = rng.random() < 0.5
        return self.draw_chain(rng, 4) if is_chain else self.draw_country_comparison(rng)

    def draw_count(self, rng: random.Random) -> GazetteerQuestion | None:
        names = self._list_names("country")
        return CountQuestion(self.world, rng.choice(names)) if names else None

    def draw_common_neighbour(self, rng: random.Random) -> GazetteerQuestion | None:
        countries = self._list_names("country")
        if not countries:
            return None
        first = rng.choice(countries)
        around = self.world.get_value((first, "neighbours")).members
        farther = {
            other
            for name in around
            if name in self.world.places
            for other in self.world.get_value((name, "neighbours")).members
        }
        names = sorted((farther - {first}) & self.world.places.keys())
        found = CommonNeighbourQuestion(self.world, first, rng.choice(names)) if names else None
        return found if found is not None and found.has_unique_answer else None

    def draw_any(self, rng: random.Random) -> GazetteerQuestion | None:
        """Draw a question of any kind, with as many facts as in training."""
        [kind] = rng.choices([*KIND_SHARES], [*KIND_SHARES.values()])
        match kind:
            case "comparison":
                return self.draw_comparison(rng)
            case "count":
                return self.draw_count(rng)
            case "meeting":
                return self.draw_common_neighbour(rng)
        return self.draw_chain(rng, rng.choice(NUM_HOPS))

    def draw_trained(self, rng: random.Random) -> GazetteerQuestion | None:
        """Draw a question of any kind or, for the fraction `known`, one that needs no call."""
        if self.known and self.world.rates and rng.random() < self.known:
            for _ in range(TRIES_PER_QUESTION):
                question = self.draw_any(rng)
                if question is not None and is_known(question):
                    return question
        return self.draw_any(rng)

    def is_on_side(self, question: GazetteerQuestion) -> bool:
        """Return whether all places of a question, including the answer, are on this side."""
        return all(self.world.is_heldout(name) == self.heldout for name in question.places)

    def draw_distinct(
        self,
        rng: random.Random,
        count: int,
        draw: Callable[[random.Random], GazetteerQuestion | None],
        condition: Callable[[GazetteerQuestion], bool],
    ) -> Iterator[GazetteerQuestion]:
        """Return up to `count` distinct questions that satisfy a condition, drawn on demand."""

        def draw_accepted() -> GazetteerQuestion | None:
            question = draw(rng)
            if question is None or not self.is_on_side(question) or not condition(question):
                return None
            return question

        max_draws = TRIES_PER_QUESTION * count
        drawn = draw_distinct_items(draw_accepted, lambda q: q.name, MAX_FAILURES, max_draws)
        return islice(drawn, count)


def is_known(question: GazetteerQuestion) -> bool:
    """Return whether the model knows all facts of a question."""
    return question.world.optimal_calls(question.facts()) == 0


def has_reserved_pair(question: GazetteerQuestion) -> bool:
    """Return whether a question chains two relations that never follow one another in training."""
    relations = question.relations if isinstance(question, ChainQuestion) else ()
    return not RESERVED_PAIRS.isdisjoint(pairwise(relations))


def is_demonstrable(question: GazetteerQuestion) -> bool:
    """Return whether a question of the training region may be demonstrated; the others are reserved
    for reinforcement learning."""
    return zlib.crc32(question.name.encode()) % DEMONSTRABLE_ONE_IN == 0


def draw_demonstrable(
    world: Gazetteer, rng: random.Random, count: int, known: float = 0.0
) -> Iterator[GazetteerQuestion]:
    """Yield questions for demonstrations, with repetitions as drawn."""
    sampler = QuestionSampler(world, heldout=False, known=known)
    while count:
        question = sampler.draw_trained(rng)
        if question is None or has_reserved_pair(question) or not is_demonstrable(question):
            continue
        if sampler.is_on_side(question):
            count -= 1
            yield question


def draw_train_tasks(world: Gazetteer, seed: int, count: int, known: float = 0.0) -> list[Task]:
    """Return up to `count` distinct questions for reinforcement learning, at most
    `MAX_TRAIN_TASKS`."""
    rng, sampler = (
        random.Random(f"tasks:{seed}"),
        QuestionSampler(world, heldout=False, known=known),
    )
    questions = sampler.draw_distinct(
        rng,
        min(count, MAX_TRAIN_TASKS),
        sampler.draw_trained,
        lambda q: not has_reserved_pair(q) and not is_demonstrable(q),
    )
    return [
        question.make_task("train", question.draw_trained_wording(rng)) for question in questions
    ]


def draw_evaluation_tasks(world: Gazetteer, seed: int, split: str, count: int) -> list[Task]:
    """Return up to `count` distinct questions of a split about held-out places, which do not occur
    in training."""
    rng, sampler = random.Random(f"{split}:{seed}"), QuestionSampler(world, heldout=True)
    draw, condition = _get_split_rule(sampler, split)
    draw_wording = (
        GazetteerQuestion.draw_reserved_wording
        if split == "wordings"
        else GazetteerQuestion.draw_trained_wording
    )
    questions = sampler.draw_distinct(rng, count, draw, condition)
    return [question.make_task(split, draw_wording(question, rng)) for question in questions]


DrawQuestion = Callable[[random.Random], GazetteerQuestion | None]


def _get_split_rule(
    sampler: QuestionSampler, split: str
) -> tuple[DrawQuestion, Callable[[GazetteerQuestion], bool]]:
    """Return the sampling function for a split, and the condition on its questions."""
    world = sampler.world
    match split:
        case "unseen_chains":
            return lambda rng: sampler.draw_chain(rng, rng.choice(NUM_HOPS[1:])), has_reserved_pair
        case "four_hops":
            return sampler.draw_four_facts, lambda _: True
        case "known":
            return sampler.draw_any, is_known
        case "mixed":
            return sampler.draw_any, lambda question: _is_mixed(world, question)
    return sampler.draw_any, lambda question: not has_reserved_pair(question)


def _is_mixed(world: Gazetteer, question: GazetteerQuestion) -> bool:
    known = [world.is_known(fact) for fact in question.facts()]
    return any(known) and not all(known)
