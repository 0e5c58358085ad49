"""Pages about the places of the gazetteer on a web site, some of which are wrong.

A place has one or two pages. A current page states the facts. An outdated page states a former year
and some values of other places; an undated page states no year and may err, too. Where there is no
current page, one of both is right about each fact. Other pages are about real cities with similar
names, such as `London in Canada`, or `East London` besides `London`.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from fieldcraft.extensions.worlds.gazetteer.articles import (
    CURRENT_YEAR,
    OUTDATED_SHARE,
    OUTDATED_YEAR,
    list_relations,
    parse_article,
    render_article,
)
from fieldcraft.extensions.worlds.gazetteer.facts import Gazetteer
from fieldcraft.extensions.worlds.gazetteer.geonames import Place, fold_name

MISTAKEN_SHARE = 0.5  # fraction of wrong facts of an undated page, among those that may be wrong
NAMESAKE_SEPARATOR = " in "  # between a name and a country, in the title of a page
GUIDE_SUFFIX = " guide"  # in the title of the second page about a place
SIMILAR_NOTE = "This page is about {}, not about {}."  # at the end of a page about a similar name
MAX_SIMILAR_PAGES = 2  # pages about similar names, for each place


class PageAge(StrEnum):
    """Last change of a page, according to its last sentence."""

    CURRENT = "current"
    OLD = "old"
    UNDATED = "undated"


AGE_SENTENCES = {
    PageAge.CURRENT: f"Last changed in {CURRENT_YEAR}.",
    PageAge.OLD: f"Last changed in {OUTDATED_YEAR}.",
    PageAge.UNDATED: "This page has no date.",
}


@dataclass(frozen=True, slots=True)
class EditionShares:
    """Fractions of the places: with a current and an outdated page, with a current and an undated
    page, and with an outdated and an undated page. All others have a current page only."""

    outdated: float
    undated: float
    uncertain: float

    def draw_ages(self, rng: random.Random) -> list[PageAge]:
        """Return the ages of the pages about a place, the one with the plain title first."""
        position = rng.random()
        for share, ages in (
            (self.outdated, [PageAge.CURRENT, PageAge.OLD]),
            (self.undated, [PageAge.CURRENT, PageAge.UNDATED]),
            (self.uncertain, [PageAge.OLD, PageAge.UNDATED]),
        ):
            if position < share:
                return rng.sample(ages, len(ages))
            position -= share
        return [PageAge.CURRENT]


@dataclass(frozen=True, slots=True)
class PlacePage:
    """A page as its reader understands it: the place in its title, its age, and the value that it
    states for each relation, true or not."""

    title: str
    subject: str
    age: PageAge
    values: Mapping[str, str]


def parse_page(title: str, text: str) -> PlacePage:
    """Return what a page states. The sentences of `London in Canada` name only London."""
    subject = title.removesuffix(GUIDE_SUFFIX)
    stated = parse_article(subject.partition(NAMESAKE_SEPARATOR)[0], text)
    ages = (age for age, sentence in AGE_SENTENCES.items() if sentence in text)
    values = {relation: value for (_, relation), value in stated.items()}
    return PlacePage(title, subject, next(ages, PageAge.UNDATED), values)


# -- the pages -----------------------------------------------------------------------------------


def iterate_place_pages(
    world: Gazetteer, shares: EditionShares, cities: Sequence[Place]
) -> Iterator[dict[str, str]]:
    """Yield all pages with ids: those about the places, and those about real cities with similar
    names among `cities`, the largest of each name first."""
    titles = set[str]()
    for place in world.places.values():
        for page in _iterate_editions(world, place, shares):
            titles.add(page["title"])
            yield page
    for title, name, city in _iterate_similar(world, cities):
        if title not in titles:
            titles.add(title)
            yield _make_page(title, city, PageAge.CURRENT, SIMILAR_NOTE.format(title, name))


def _iterate_editions(
    world: Gazetteer, place: Place, shares: EditionShares
) -> Iterator[dict[str, str]]:
    rng = random.Random(f"pages:{place.name}")
    ages = shares.draw_ages(rng)
    wrong = _draw_wrong_relations(place, ages, rng)
    for number, age in enumerate(ages):
        title = place.name + (GUIDE_SUFFIX if number else "")
        yield _make_page(title, _make_mistaken(world, place, wrong[age], rng), age)


def _draw_wrong_relations(
    place: Place, ages: Sequence[PageAge], rng: random.Random
) -> dict[PageAge, set[str]]:
    """Return the facts that the page of each age misstates: each fact is right on one page."""
    relations = list_relations(place)
    old = {r for r in relations if PageAge.OLD in ages and rng.random() < OUTDATED_SHARE}
    undated = {r for r in relations if r not in old and rng.random() < MISTAKEN_SHARE}
    return {PageAge.CURRENT: set(), PageAge.OLD: old, PageAge.UNDATED: undated}


def _make_mistaken(
    world: Gazetteer, place: Place, relations: set[str], rng: random.Random
) -> Place:
    """Return the place with values of other places for some relations. A place of training never
    gets a value of a held-out one."""
    facts = dict(place.facts)
    for relation in sorted(relations):
        names = world.list_names(place.kind, world.is_heldout(place.name))
        values = [world.places[name].facts.get(relation) for name in names]
        others = [v for v in values if v is not None and v.text != place.facts[relation].text]
        if others:
            facts[relation] = rng.choice(others)
    return replace(place, facts=facts)


def _make_page(title: str, place: Place, age: PageAge, *notes: str) -> dict[str, str]:
    text = " ".join((render_article(place, title), AGE_SENTENCES[age], *notes))
    return {"id": f"page:{title}", "title": title, "text": text}


def _iterate_similar(world: Gazetteer, cities: Sequence[Place]) -> Iterator[tuple[str, str, Place]]:
    """Yield cities whose name equals or contains that of a place, after the titles of their pages
    and that name."""
    names_by_form = {fold_name(name): name for name in world.places}
    counts = Counter[str]()
    for city in cities:
        name = _find_contained_name(names_by_form, city.name)
        if name is None or (city.name in world.places and city.name != name):
            continue
        place = world.places[name]
        is_same_name = fold_name(city.name) == fold_name(name)
        if is_same_name and place.kind == "city" and city.country == place.country:
            continue  # the place itself, or one that its country does not distinguish
        if world.is_heldout(name) != (city.country in world.heldout):
            continue
        counts[name] += 1
        if counts[name] <= MAX_SIMILAR_PAGES:
            if is_same_name:
                title = f"{name}{NAMESAKE_SEPARATOR}{city.country}"
                yield title, name, replace(city, name=name)
            else:
                yield city.name, name, city


def _find_contained_name(names_by_form: Mapping[str, str], name: str) -> str | None:
    """Return the longest name that consists of successive words of a name."""
    words = re.split(r"[ -]", fold_name(name))
    forms = (
        " ".join(words[start : start + length])
        for length in range(len(words), 0, -1)
        for start in range(len(words) - length + 1)
    )
    return next((names_by_form[form] for form in forms if form in names_by_form), None)
