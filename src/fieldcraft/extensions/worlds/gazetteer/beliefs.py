"""Facts as the pages of a web site state them, and the questions that they answer, right or wrong.

A team of scripts knows no facts but those it has read. A question about what was read is the same
question as about the real places, with other values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fieldcraft.extensions.worlds.gazetteer.articles import FactKey
from fieldcraft.extensions.worlds.gazetteer.editions import PageAge, PlacePage
from fieldcraft.extensions.worlds.gazetteer.facts import Gazetteer
from fieldcraft.extensions.worlds.gazetteer.geonames import FactValue, Place
from fieldcraft.extensions.worlds.gazetteer.program import split_names
from fieldcraft.extensions.worlds.gazetteer.questions import (
    CommonNeighbourQuestion,
    GazetteerQuestion,
    parse_spec,
)

UNREAD = FactValue("", ())  # value of a fact that no page has stated
NOTHING_FOUND = "unknown"
PREFERRED_AGES = (PageAge.CURRENT, PageAge.UNDATED, PageAge.OLD)  # where pages contradict


class _ReadFacts(dict[str, FactValue]):
    """Facts of a place by relation; one that was not read is UNREAD."""

    def __missing__(self, relation: str) -> FactValue:
        return UNREAD


class _ReadPlaces(dict[str, Place]):
    """Places by name; one of which nothing was read has no facts but its name."""

    def __missing__(self, name: str) -> Place:
        facts = _ReadFacts(name=FactValue(name, (name,)))
        self[name] = Place(name, "city", "", 0, facts)
        return self[name]


@dataclass
class Beliefs:
    """Pages that an agent has read, by the place that it took them to be about, and the question
    that it answers from them."""

    spec: Sequence[str]
    pages: dict[str, list[PlacePage]] = field(default_factory=dict)
    _places: _ReadPlaces = field(default_factory=_ReadPlaces)

    @property
    def question(self) -> GazetteerQuestion:
        return parse_spec(Gazetteer(self._places, frozenset()), self.spec)

    def add(self, name: str, page: PlacePage) -> None:
        """Add a page that is read as one about a place. Where pages contradict, a current one is
        believed, or else the undated one."""
        self.pages.setdefault(name, []).append(page)
        facts = self._places[name].facts
        for stated in sorted(self.pages[name], key=_get_rank, reverse=True):
            facts.update({relation: make_value(text) for relation, text in stated.values.items()})

    def get_text(self, fact: FactKey) -> str:
        """Return the object of a fact, empty if it was not read."""
        return self._places[fact[0]].facts[fact[1]].text

    def find_unread(self) -> FactKey | None:
        """Return the first fact of the question that was not read, or None."""
        return next((fact for fact in self.question.facts() if not self.get_text(fact)), None)

    def iterate_read(self) -> Iterator[FactKey]:
        """Yield the facts of the question that were read, in order."""
        return (fact for fact in self.question.facts() if self.get_text(fact))

    def is_proved(self, fact: FactKey) -> bool:
        """Return whether a current page or two pages state the believed value."""
        pages = self.pages[fact[0]]
        same = [page for page in pages if page.values.get(fact[1]) == self.get_text(fact)]
        return len(same) > 1 or any(page.age is PageAge.CURRENT for page in same)

    def conclude(self) -> tuple[str, str]:
        """Return the answer, and the sentence that derives it from the facts. If the facts permit
        none, the answer is the object that was read last,
        if any, and the sentence is empty."""
        question = self.question
        has_answer = not isinstance(question, CommonNeighbourQuestion) or bool(
            question.common_neighbours
        )
        if self.find_unread() or not has_answer:
            read = [self.get_text(fact) for fact in self.iterate_read()]
            return (read[-1] if read else NOTHING_FOUND), ""
        return question.answer().text, question.conclusion()


def make_value(text: str) -> FactValue:
    """Return the object of a fact as an article states it."""
    digits = text.replace(",", "")
    number = int(digits) if digits.isdecimal() else None
    return FactValue(text, (text,), number=number, members=tuple(split_names(text)))


def _get_rank(page: PlacePage) -> int:
    return PREFERRED_AGES.index(page.age)
