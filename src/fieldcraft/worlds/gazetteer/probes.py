"""Questions for single facts, by which it is measured what a model knows without tools.

Each is a prompt to continue, for a model that has learned nothing but to write on: three answered
questions for the same relation, about places of the reserve, and one that is not answered. All
prompts of a relation begin with the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from fieldcraft.types import Task
from fieldcraft.worlds.gazetteer.articles import Fact, relations_of
from fieldcraft.worlds.gazetteer.facts import NEVER_KNOWN, RESERVED, Gazetteer
from fieldcraft.worlds.gazetteer.geonames import Place
from fieldcraft.worlds.gazetteer.wordings import ASKING, written

BETWEEN = "|"  # name and relation of a fact, in the id of its probe


def probes(world: Gazetteer) -> list[Task]:
    """Return a question for each fact that a model may know, those of a relation together;
    `answers` are what counts as right in the first line that continues `question`."""
    found = [
        Task(
            f"{place.name}{BETWEEN}{relation}",
            few_shot(world, place, relation),
            place.facts[relation].accepted,
            {"relation": relation},
        )
        for place in world.places.values()
        for relation in relations_of(place)
        if relation not in NEVER_KNOWN
    ]
    return sorted(found, key=lambda task: str(task.meta["relation"]))


def fact_of(probe: str) -> Fact:
    """Return the fact that the id of a probe names."""
    name, _, relation = probe.partition(BETWEEN)
    return name, relation


def few_shot(world: Gazetteer, place: Place, relation: str) -> str:
    """Return the prompt that asks for a fact."""
    shown = "".join(
        f"{_asked(other, relation)} {other.facts[relation].text}\n\n"
        for other in islice(_examples(world, place.kind, relation), RESERVED)
    )
    return f"{shown}{_asked(place, relation)}"


def _asked(place: Place, relation: str) -> str:
    return f"Q: {written(ASKING[relation][0], of=place.name)}\nA:"


def _examples(world: Gazetteer, kind: str, relation: str) -> Iterator[Place]:
    return (p for p in (*world.reserve, *world.others) if p.kind == kind and relation in p.facts)
