"""Probes: questions for single facts that measure what a model knows without tools.

Each probe is a prompt to complete, for a model that was only pretrained: three answered questions
for the same relation, about reserved places, and one unanswered question. All prompts of a relation
have a common prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from fieldcraft.extensions.worlds.gazetteer.articles import FactKey, list_relations
from fieldcraft.extensions.worlds.gazetteer.facts import (
    NEVER_KNOWN_RELATIONS,
    NUM_RESERVED_PLACES,
    Gazetteer,
)
from fieldcraft.extensions.worlds.gazetteer.geonames import Place
from fieldcraft.extensions.worlds.gazetteer.wordings import QUESTION_WORDINGS, fill_wording
from fieldcraft.types import Task

ID_SEPARATOR = "|"  # between name and relation of a fact, in the id of its probe


def make_probes(world: Gazetteer) -> list[Task]:
    """Return a question for each fact that a model may know, grouped by relation; `answers` are
    accepted in the first line of the completion of `question`."""
    found = [
        Task(
            f"{place.name}{ID_SEPARATOR}{relation}",
            make_few_shot_prompt(world, place, relation),
            place.facts[relation].accepted,
            {"relation": relation},
        )
        for place in world.places.values()
        for relation in list_relations(place)
        if relation not in NEVER_KNOWN_RELATIONS
    ]
    return sorted(found, key=lambda task: str(task.meta["relation"]))


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
