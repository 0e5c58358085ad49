"""Questions of the gazetteer: the facts that they need, their answers, and their wordings."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from fieldcraft.extensions.worlds.gazetteer.articles import FactKey
from fieldcraft.extensions.worlds.gazetteer.facts import Gazetteer
from fieldcraft.extensions.worlds.gazetteer.geonames import FactValue
from fieldcraft.extensions.worlds.gazetteer.wordings import (
    COMMON_NEIGHBOUR_WORDINGS,
    COMPARISON_WORDINGS,
    COUNT_WORDINGS,
    NUM_TRAINED_WORDINGS,
    PHRASE_WORDINGS,
    QUESTION_WORDINGS,
    fill_wording,
)
from fieldcraft.types import Task

NUMERALS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class GazetteerQuestion(ABC):
    """Base class of a question, with an ordered list of facts and a conclusion from them."""

    world: Gazetteer

    @property
    @abstractmethod
    def spec(self) -> tuple[str, ...]:
        """Canonical form of the question, from which `parse_spec` restores it."""

    @abstractmethod
    def facts(self) -> list[FactKey]:
        """Return the facts that the question needs. Each is about a place that is named before the
        fact is looked up."""

    @abstractmethod
    def answer(self) -> FactValue: ...

    def conclusion(self) -> str:
        """Return the sentence that derives the answer from the facts; empty if the last fact is the
        answer."""
        return ""

    @abstractmethod
    def wordings(self) -> tuple[str, ...]:
        """Return all wordings, those reserved for evaluations last."""

    @property
    def places(self) -> set[str]:
        """All places of the gazetteer on the path of the question, including its answer."""
        reached = {self.world.get_value(fact).text for fact in self.facts()}
        named = {name for name, _ in self.facts()} | reached | {self.answer().text}
        return named & self.world.places.keys()

    @property
    def name(self) -> str:
        return "/".join(self.spec)

    def make_task(self, split: str, wording: int) -> Task:
        """Return the question as a task, in one of its wordings."""
        facts, world = self.facts(), self.world
        calls = world.optimal_calls(facts)
        meta = {
            "split": split,
            "hops": len(facts),
            "asks": list(self.spec),
            "kind": self.spec[0],
            "cluster": world.places[facts[0][0]].country,
            "known": calls == 0,
            "known_facts": sum(map(world.is_known, facts)),
            "calls_optimal": calls,
            "recall": round(world.estimate_recall(facts), 4),
            "wording": wording,
        }
        text = self.wordings()[wording]
        return Task(f"gazetteer:{self.name}:{wording}", text, self.answer().accepted, meta)

    def draw_trained_wording(self, rng: random.Random) -> int:
        return rng.randrange(NUM_TRAINED_WORDINGS)

    def draw_reserved_wording(self, rng: random.Random) -> int:
        return rng.randrange(NUM_TRAINED_WORDINGS, len(self.wordings()))


@dataclass(frozen=True)
class ChainQuestion(GazetteerQuestion):
    """Question for the end of a chain of relations that starts at a place."""

    start: str
    relations: tuple[str, ...]

    @property
    def spec(self) -> tuple[str, ...]:
        return ("chain", self.start, *self.relations)

    def facts(self) -> list[FactKey]:
        name, found = self.start, []
        for relation in self.relations:
            found.append((name, relation))
            name = self.world.get_value((name, relation)).text
        return found

    def answer(self) -> FactValue:
        return self.world.get_value(self.facts()[-1])

    def wordings(self) -> tuple[str, ...]:
        *leading, last = self.relations
        rng = random.Random(self.name)
        found = []
        for template in QUESTION_WORDINGS[last]:
            subject = self.start
            for relation in leading:
                subject = rng.choice(PHRASE_WORDINGS[relation]).format(of=subject)
            found.append(fill_wording(template, of=subject))
        return tuple(found)


@dataclass(frozen=True)
class ComparisonQuestion(GazetteerQuestion):
    """Question about which of two places of a kind has more of a quantity, `population` or
    `area`."""

    relation: str
    first: str
    second: str

    @property
    def spec(self) -> tuple[str, ...]:
        return ("comparison", self.relation, self.first, self.second)

    def compared_places(self) -> tuple[str, str]:
        """Return the places whose quantities are compared."""
        return self.first, self.second

    def facts(self) -> list[FactKey]:
        return [(name, self.relation) for name in self.compared_places()]

    def answer(self) -> FactValue:
        return self.world.get_value((self._ranked()[0][1], "name"))

    def conclusion(self) -> str:
        (more, name), (less, _) = self._ranked()
        return f"{more.text} is more than {less.text}, so it is {name}."

    def _ranked(self) -> list[tuple[FactValue, str]]:
        """Return the two quantities with the names of the places, larger one first."""
        found = [
            (self.world.get_value((name, self.relation)), name) for name in self.compared_places()
        ]
        return sorted(found, key=lambda pair: -(pair[0].number or 0))

    def wordings(self) -> tuple[str, ...]:
        return self._render_wordings(self.first, self.second)

    def _render_wordings(self, first: str, second: str) -> tuple[str, ...]:
        templates = COMPARISON_WORDINGS[self.relation]
        return tuple(fill_wording(template, first=first, second=second) for template in templates)


@dataclass(frozen=True)
class CountryComparisonQuestion(ComparisonQuestion):
    """Question that compares the countries of two cities."""

    @property
    def spec(self) -> tuple[str, ...]:
        return ("comparison_of_countries", self.relation, self.first, self.second)

    def compared_places(self) -> tuple[str, str]:
        first, second = (
            self.world.get_value((city, "country")).text for city in (self.first, self.second)
        )
        return first, second

    def facts(self) -> list[FactKey]:
        first, second = self.compared_places()
        return [
            (self.first, "country"),
            (first, self.relation),
            (self.second, "country"),
            (second, self.relation),
        ]

    def wordings(self) -> tuple[str, ...]:
        rng = random.Random(self.name)
        phrases = PHRASE_WORDINGS["country"]
        return self._render_wordings(
            *(rng.choice(phrases).format(of=city) for city in (self.first, self.second))
        )


@dataclass(frozen=True)
class CountQuestion(GazetteerQuestion):
    """Question about the number of countries that a country borders."""

    place: str

    @property
    def spec(self) -> tuple[str, ...]:
        return ("count", self.place)

    def facts(self) -> list[FactKey]:
        return [(self.place, "neighbours")]

    def answer(self) -> FactValue:
        count = len(self.world.get_value(self.facts()[0]).members)
        return FactValue(str(count), (str(count), *NUMERALS[count : count + 1]))

    def conclusion(self) -> str:
        members = self.world.get_value(self.facts()[0]).members
        counted = ", ".join(f"{number} {name}" for number, name in enumerate(members, start=1))
        return f"Counted: {counted}."

    def wordings(self) -> tuple[str, ...]:
        return tuple(fill_wording(template, of=self.place) for template in COUNT_WORDINGS)


@dataclass(frozen=True)
class CommonNeighbourQuestion(GazetteerQuestion):
    """Question about the only country that borders two others."""

    first: str
    second: str

    @property
    def spec(self) -> tuple[str, ...]:
        return ("meeting", self.first, self.second)

    def facts(self) -> list[FactKey]:
        return [(self.first, "neighbours"), (self.second, "neighbours")]

    @property
    def common_neighbours(self) -> list[str]:
        """All countries that border both."""
        first, second = (set(self.world.get_value(fact).members) for fact in self.facts())
        return sorted((first & second) - {self.first, self.second})

    @property
    def has_unique_answer(self) -> bool:
        """Return whether there is exactly one such country, and the gazetteer contains it."""
        return len(self.common_neighbours) == 1 and self.common_neighbours[0] in self.world.places

    def answer(self) -> FactValue:
        return self.world.get_value((self.common_neighbours[0], "name"))

    def conclusion(self) -> str:
        return f"Both border {self.common_neighbours[0]}."

    def wordings(self) -> tuple[str, ...]:
        return tuple(
            fill_wording(template, first=self.first, second=self.second)
            for template in COMMON_NEIGHBOUR_WORDINGS
        )


def parse_spec(world: Gazetteer, spec: Sequence[str]) -> GazetteerQuestion:
    """Restore the question of a task of this world from `asks` in its metadata. Raises ValueError
    if it is invalid."""
    match list(spec):
        case ["chain", start, *relations]:
            return ChainQuestion(world, start, tuple(relations))
        case ["comparison", relation, first, second]:
            return ComparisonQuestion(world, relation, first, second)
        case ["comparison_of_countries", relation, first, second]:
            return CountryComparisonQuestion(world, relation, first, second)
        case ["count", place]:
            return CountQuestion(world, place)
        case ["meeting", first, second]:
            return CommonNeighbourQuestion(world, first, second)
    raise ValueError(f"{spec} is not a question of the gazetteer")
