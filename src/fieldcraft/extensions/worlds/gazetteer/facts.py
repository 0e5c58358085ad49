"""Places of a gazetteer, which of them are held out, and probes of the facts that a model knows.

Probes are questions for single facts that measure what a model knows without tools. Each probe is a
prompt to complete, for a model that was only pretrained: three answered questions for the same
relation, about reserved places, and one unanswered question. All prompts of a relation have a
common prefix.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from fieldcraft.extensions.worlds.gazetteer.articles import FactKey, list_relations
from fieldcraft.extensions.worlds.gazetteer.geonames import REACHED_KINDS, FactValue, Place
from fieldcraft.extensions.worlds.gazetteer.wordings import QUESTION_WORDINGS, fill_wording
from fieldcraft.types import KNOWN_ACCURACY_THRESHOLD, Task, UserError

# Relations that lead from one place to another, and further relations that may end a chain.
LEADING_RELATIONS = tuple(REACHED_KINDS)
ENDING_RELATIONS = ("continent", "currency", "language", "time_zone")
# Relations that are not probed, because models know hardly any: numbers, lists, and time zones by
# their tz database names (SmolLM2-135M-Instruct: 4 of 538).
NEVER_KNOWN_RELATIONS = ("area", "population", "neighbours", "time_zone")
MAX_CITIES_PER_COUNTRY = 10  # cities
NUM_RESERVED_PLACES = 3  # regions and countries that occur only in few-shot prompts
ID_SEPARATOR = "|"  # between name and relation of a fact, in the id of its probe


@dataclass(frozen=True)
class Gazetteer:
    """A selection of places with all their facts.

    `heldout` holds the countries that do not occur in training, including their cities and regions.
    `reserved_places` are regions and countries that occur only in few-shot prompts, `other_cities`
    are cities that do not occur in questions. `rates` is the fraction of correct answers of a model
    to the question for a fact without tools; facts without a rate count as unknown.
    """

    places: Mapping[str, Place]
    heldout: frozenset[str]
    reserved_places: Sequence[Place] = ()
    other_cities: Sequence[Place] = ()
    rates: Mapping[FactKey, float] = field(default_factory=dict)

    def with_rates(self, rates: Mapping[FactKey, float]) -> Gazetteer:
        return replace(self, rates=rates)

    def get_value(self, fact: FactKey) -> FactValue:
        """Return the object of a fact. Raises KeyError for a missing fact."""
        return self.places[fact[0]].facts[fact[1]]

    def has_fact(self, name: str, relation: str) -> bool:
        return name in self.places and relation in self.places[name].facts

    def is_known(self, fact: FactKey) -> bool:
        """Return whether the model's rate for a fact without tools reaches
        KNOWN_ACCURACY_THRESHOLD."""
        return self.rates.get(fact, 0.0) >= KNOWN_ACCURACY_THRESHOLD

    def is_heldout(self, name: str) -> bool:
        return self.places[name].country in self.heldout

    def get_article_facts(self, name: str) -> set[FactKey]:
        """Return the facts that the article of a place states."""
        return {(name, relation) for relation in list_relations(self.places[name])}

    def optimal_calls(self, facts: Iterable[FactKey]) -> int:
        """Return the minimum number of searches after which all of these facts are known: one per
        place with an unknown fact."""
        return len({fact[0] for fact in facts if not self.is_known(fact)})

    def estimate_recall(self, facts: Iterable[FactKey]) -> float:
        """Return the probability that a model states all of these facts without a tool, assuming
        independence."""
        chance = 1.0
        for fact in facts:
            chance *= self.rates.get(fact, 0.0)
        return chance

    def list_names(self, kind: str, heldout: bool) -> list[str]:
        """Return the held-out or the other names of a kind, in the order of the places."""
        return [
            name
            for name, place in self.places.items()
            if place.kind == kind and self.is_heldout(name) == heldout
        ]

    def _is_place(self, name: str, kind: str | None) -> bool:
        return name in self.places and self.places[name].kind == kind

    def iterate_chains(self, start: str, hops: int) -> Iterator[tuple[str, ...]]:
        """Yield the chains of `hops` relations from a place to an answer that is not one of the
        places on the path. The country of a region is not reached via one of its cities, because
        the article of the city states the country."""
        for relation in (*LEADING_RELATIONS, *ENDING_RELATIONS):
            if self.has_fact(start, relation):
                yield from self._extend_chain((start,), (relation,), hops)

    def _extend_chain(
        self, names: tuple[str, ...], relations: tuple[str, ...], hops: int
    ) -> Iterator[tuple[str, ...]]:
        reached = self.get_value((names[-1], relations[-1])).text
        if reached in names:
            return
        if len(relations) == hops:
            yield relations
            return
        if not self._is_place(reached, REACHED_KINDS.get(relations[-1])):
            return
        for relation in (*LEADING_RELATIONS, *ENDING_RELATIONS):
            detour = relations[-1] == "region" and relation == "country"
            if not detour and self.has_fact(reached, relation):
                yield from self._extend_chain((*names, reached), (*relations, relation), hops)


def select_places(places: Sequence[Place], cities: int, heldout: float, seed: int) -> Gazetteer:
    """Select the largest cities, at most MAX_CITIES_PER_COUNTRY per country, all capitals and
    largest cities of regions, and all regions and countries. The fraction `heldout` of the
    countries is held out.

    Raises UserError if there are fewer cities than requested, or if all countries or none would be
    held out.
    """
    city_counts: Counter[str] = Counter()
    found: dict[str, Place] = {}
    others: list[Place] = []
    named = {
        place.facts[relation].text
        for place in places
        for relation in ("capital", "largest_city")
        if relation in place.facts
    }
    for place in places:
        if place.kind != "city":
            found[place.name] = place
        elif city_counts.total() >= cities and place.name not in named:
            others.append(place)
        elif place.name in named or city_counts[place.country] < MAX_CITIES_PER_COUNTRY:
            found[place.name] = place
            city_counts[place.country] += 1
    if city_counts.total() < cities:
        raise UserError(f"world.cities={cities}: only {city_counts.total()} are available.")
    reserve: list[Place] = []
    for kind in ("region", "country"):
        last = [place for place in found.values() if place.kind == kind][-NUM_RESERVED_PLACES:]
        reserve += last
        for place in last:
            del found[place.name]
    countries = sorted(place.name for place in found.values() if place.kind == "country")
    rng = random.Random(f"heldout:{seed}")
    num_heldout = round(heldout * len(countries))
    if not 0 < num_heldout < len(countries):
        raise UserError(
            f"world.heldout={heldout} holds out {num_heldout} of {len(countries)} countries: move"
            " it away from 0 and 1, because evaluations and training need some each."
        )
    heldout_countries = frozenset(rng.sample(countries, num_heldout))
    remaining = {name: place for name, place in found.items() if place.country in countries}
    return Gazetteer(remaining, heldout_countries, reserve, others)


# -- probes ------------------------------------------------------------------------------------


def make_probes(world: Gazetteer) -> list[Task]:
    """Return a question for each fact that a model may know, grouped by relation; `answers` are
    accepted in the first line of the completion of `question`."""
    found = [
        Task(
            f"{place.name}{ID_SEPARATOR}{relation}",
            make_few_shot_prompt(world, place, relation),
            place.facts[relation].accepted,
            {"kind": relation},
        )
        for place in world.places.values()
        for relation in list_relations(place)
        if relation not in NEVER_KNOWN_RELATIONS
    ]
    return sorted(found, key=lambda task: str(task.meta["kind"]))


def parse_probe_id(probe: str) -> FactKey:
    """Return the fact of a probe's id."""
    name, _, relation = probe.partition(ID_SEPARATOR)
    return name, relation


def make_few_shot_prompt(world: Gazetteer, place: Place, relation: str) -> str:
    """Return the prompt that asks for a fact."""
    examples = "".join(
        f"{_render_question(other, relation)} {other.facts[relation].text}\n\n"
        for other in islice(_iterate_examples(world, place.kind, relation), NUM_RESERVED_PLACES)
    )
    return f"{examples}{_render_question(place, relation)}"


def _render_question(place: Place, relation: str) -> str:
    return f"Q: {fill_wording(QUESTION_WORDINGS[relation][0], of=place.name)}\nA:"


def _iterate_examples(world: Gazetteer, kind: str, relation: str) -> Iterator[Place]:
    return (
        p
        for p in (*world.reserved_places, *world.other_cities)
        if p.kind == kind and relation in p.facts
    )
