"""Articles of the gazetteer: rendering of facts in several wordings, parsing, and search results.

The passages of a corpus are plain, or harder to read.
"""

from __future__ import annotations

import random
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from fieldcraft.data.passages import format_passages
from fieldcraft.extensions.search.index import SearchIndex, build_index
from fieldcraft.extensions.worlds.gazetteer.geonames import FactValue, Place, PlaceKind
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.types import Observation, ToolCall

FactKey = tuple[str, str]  # the name of a place, and a relation

OUTDATED_SHARE = 0.6  # fraction of outdated facts in an older article
CURRENT_YEAR, OUTDATED_YEAR = 2025, 1998  # years in articles of corpora with outdated ones

# The first sentence of a relation is also used in thoughts; each sentence names the place.
SENTENCES: dict[PlaceKind, dict[str, tuple[str, ...]]] = {
    "city": {
        "country": (
            "{place} is a city in {value}.",
            "The city of {place} belongs to {value}.",
            "{place} is a city that lies in {value}.",
        ),
        "region": (
            "{place} lies in the region {value}.",
            "{place} is part of {value}.",
            "The region around {place} is {value}.",
        ),
        "time_zone": (
            "The time zone of {place} is {value}.",
            "Clocks in {place} follow {value}.",
            "{place} uses the time zone {value}.",
        ),
        "population": (
            "{place} has {value} inhabitants.",
            "The population of {place} is {value}.",
            "{value} people live in {place}.",
        ),
    },
    "region": {
        "country": (
            "{place} is a region of {value}.",
            "The region {place} belongs to {value}.",
            "{place} is one of the regions of {value}.",
        ),
        "largest_city": (
            "The largest city of {place} is {value}.",
            "{value} is the largest city in {place}.",
            "No city in {place} is larger than {value}.",
        ),
    },
    "country": {
        "continent": (
            "{place} is a country in {value}.",
            "The country {place} is part of {value}.",
            "{place} is one of the countries of {value}.",
        ),
        "capital": (
            "The capital of {place} is {value}.",
            "{value} is the capital of {place}.",
            "The government of {place} sits in {value}.",
        ),
        "currency": (
            "The currency of {place} is the {value}.",
            "People in {place} pay with the {value}.",
            "Prices in {place} are given in the {value}.",
        ),
        "language": (
            "The language of {place} is {value}.",
            "{value} is the official language of {place}.",
            "In {place}, laws are written in {value}.",
        ),
        "area": (
            "{place} covers {value} square kilometres.",
            "The area of {place} is {value} square kilometres.",
            "{place} is {value} square kilometres large.",
        ),
        "population": (
            "{place} has {value} inhabitants.",
            "The population of {place} is {value}.",
            "{value} people live in {place}.",
        ),
        "neighbours": (
            "{place} borders {value}.",
            "The neighbours of {place} are {value}.",
            "{place} shares its land borders with {value}.",
        ),
    },
}


def render_statement(place: Place, relation: str) -> str:
    """Return the sentence that states a fact in a thought."""
    template = SENTENCES[place.kind][relation][0]
    return template.format(place=place.name, value=place.facts[relation].text)


def list_relations(place: Place) -> list[str]:
    """Return the relations in the article of a place, in order."""
    return [relation for relation in SENTENCES[place.kind] if relation in place.facts]


def render_article(place: Place, edition: str = "") -> str:
    """Return the text about a place. Its wordings, and the order of all sentences but the first,
    are determined by the name and the edition."""
    rng = random.Random(f"article:{place.name}:{edition}")
    first, *others = list_relations(place)
    rng.shuffle(others)
    return " ".join(
        rng.choice(SENTENCES[place.kind][relation]).format(
            place=place.name, value=place.facts[relation].text
        )
        for relation in (first, *others)
    )


def make_query(place: Place) -> str:
    """Return the query that finds the article of a place. The kind distinguishes a country from
    cities whose articles name it."""
    return f"{place.name} {place.kind}"


def parse_article(title: str, text: str) -> dict[FactKey, str]:
    """Return the facts that an article states about its title, true or not, with their objects."""
    found: dict[FactKey, str] = {}
    for relation, pattern in _make_patterns(title):
        if match := pattern.search(text):
            found.setdefault((title, relation), match["value"])
    return found


@cache
def _make_patterns(title: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(
        (relation, _make_pattern(template, title))
        for relations in SENTENCES.values()
        for relation, templates in relations.items()
        for template in templates
    )


def _make_pattern(template: str, title: str) -> re.Pattern[str]:
    """Return the pattern of a sentence about a title, at the start of the text or after another
    sentence."""
    pattern = re.escape(template.removesuffix(".")).replace(r"\{place\}", re.escape(title))
    pattern = pattern.replace(re.escape("{value}"), r"(?P<value>(?:(?!\. )[^\n])+?)")
    return re.compile(rf"(?:^|(?<=\. )){pattern}\.(?= |$)", re.MULTILINE)


def is_article(title: str, text: str, places: Mapping[str, Place]) -> bool:
    """Return whether a text has the form of a place's article, with each sentence once."""
    place = places.get(title)
    if place is None:
        return False
    stated_relations = {relation for _, relation in parse_article(title, text)}
    return stated_relations == set(list_relations(place)) and text.endswith(".")


def make_outdated(place: Place, places: Mapping[str, Place]) -> Place:
    """Return a place as described by an older article, with some values of other places."""
    rng = random.Random(f"outdated:{place.name}")
    same_kind = [
        other for other in places.values() if other.kind == place.kind and other is not place
    ]
    facts = dict(place.facts)
    for relation in list_relations(place):
        if (other := rng.choice(same_kind)).facts.get(relation) and rng.random() < OUTDATED_SHARE:
            facts[relation] = other.facts[relation]
    return replace(place, facts=facts)


def is_true(places: Mapping[str, Place], fact: FactKey, stated_value: str) -> bool:
    """Return whether a fact has the stated object."""
    value: FactValue | None = places[fact[0]].facts.get(fact[1]) if fact[0] in places else None
    return value is not None and value.text == stated_value


# -- passages, and searches in them ------------------------------------------------------------


def iterate_passages(places: Sequence[Place]) -> Iterator[dict[str, str]]:
    """Yield an article for each place, with ids."""
    for place in places:
        yield _make_passage(place, "", render_article(place))


def iterate_harder_passages(
    places: Sequence[Place],
    others: Sequence[Place],
    outdated_share: float,
    duplicate_share: float,
) -> Iterator[dict[str, str]]:
    """Yield the articles with their years. Some places also have an older article that contradicts
    the newer one, and some have a second article in other words. `others` are places that do not
    occur in questions."""
    places_by_name = {place.name: place for place in places}
    for place in places:
        yield _make_passage(place, "", _add_year(CURRENT_YEAR, render_article(place)))
        rng = random.Random(f"editions:{place.name}")
        if rng.random() < outdated_share:
            yield _make_passage(
                place,
                "-old",
                _add_year(
                    OUTDATED_YEAR, render_article(make_outdated(place, places_by_name), "old")
                ),
            )
        if rng.random() < duplicate_share:
            yield _make_passage(
                place, "-again", _add_year(CURRENT_YEAR, render_article(place, "again"))
            )
    for place in others:
        yield _make_passage(place, "", _add_year(CURRENT_YEAR, render_article(place)))


def _make_passage(place: Place, edition: str, text: str) -> dict[str, str]:
    return {"id": f"{place.kind}:{place.name}{edition}", "title": place.name, "text": text}


def _add_year(year: int, text: str) -> str:
    return f"Written in {year}. {text}"


class GazetteerCorpus:
    """Passages, and the results of searches in them, as the tool `search` returns them.

    The index is built lazily in a temporary folder.
    """

    def __init__(self, passages: Sequence[dict[str, str]], top_k: int) -> None:
        self.passages = passages
        self.top_k = top_k

    @cached_property
    def _index(self) -> SearchIndex:
        folder = Path(mkdtemp(prefix="fieldcraft-"))
        weakref.finalize(self, rmtree, folder)
        write_json_lines(folder / "corpus.jsonl", self.passages)
        return build_index(folder / "corpus.jsonl", folder / "index")

    def make_observation(self, action: ToolCall) -> Observation:
        """Return the text of the top passages of a search."""
        query = str(action.arguments.get("query", ""))
        return Observation(format_passages(self._index.search([query], self.top_k)[0]))
