"""Scripted team that reads the pages of the gazetteer's web site, and a single agent that does.

Neither knows the facts. Both open the first page that a search finds, and their errors are those of
the pages: similar names, former values, and pages that contradict each other. The team's reflection
compares titles and years, and its double check looks for a second page where no current one was
read. If two pages contradict and neither is current, it may still be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fieldcraft.data.world import merge_thoughts
from fieldcraft.dialects.afm_grades import make_double_check, make_reflection
from fieldcraft.extensions.worlds.gazetteer.articles import (
    CURRENT_YEAR,
    OUTDATED_YEAR,
    SENTENCES,
    FactKey,
)
from fieldcraft.extensions.worlds.gazetteer.beliefs import Beliefs
from fieldcraft.extensions.worlds.gazetteer.editions import (
    GUIDE_SUFFIX,
    PageAge,
    PlacePage,
    parse_page,
)
from fieldcraft.extensions.worlds.gazetteer.geonames import PlaceKind
from fieldcraft.extensions.worlds.pages import parse_page_title
from fieldcraft.types import Answer, DemoStep, Observation, Thought, ThoughtRole, ToolCall

MAX_TEAM_CALLS = 8  # searches and pages of a chain
MAX_TRIES = 3  # pages opened for a place, if they are about others
SECOND_QUERY = "guide"  # added to a name that was searched for in vain
URL_REGEX = re.compile(r"https?://[^\s()]+")
# Grades of a page, in the order of CRITERIA.
GOOD_GRADES = ("Good", "Good", "Good")
OTHER_PLACE_GRADES = ("Good", "Poor", "Fair")  # the page is about another place
OLD_PAGE_GRADES = ("Poor", "Good", "Fair")  # another page may contradict it
WEAK_PAGE_GRADES = ("Fair", "Good", "Good")  # no better page is known
AGE_REFLECTIONS = {
    PageAge.CURRENT: f"The page is of {CURRENT_YEAR}.",
    PageAge.OLD: f"The page is of {OUTDATED_YEAR}.",
    PageAge.UNDATED: "The page has no date.",
}
PROVED_SCORE, UNPROVED_SCORE, DOUBTFUL_SCORE, UNKNOWN_SCORE = 4, 3, 2, 1


class PageTrouble(StrEnum):
    """Obstacle on the way to an answer. The last one of the list is the hardest."""

    NONE = "1 plain"
    SIMILAR = "2 similar name"
    OLD = "3 old page"
    UNDATED = "4 undated page"
    CONTRADICTION = "5 contradiction, no current page"


@dataclass
class SiteReader:
    """An agent that searches and reads a site, one step after the other.

    Args:
        observe: function that returns the observation of a call.
        site: address of the site.
        beliefs: what was read.
    """

    observe: Callable[[ToolCall], Observation]
    site: str
    beliefs: Beliefs
    steps: list[DemoStep] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)  # of the pages whose addresses are known
    addresses: dict[str, str] = field(default_factory=dict)  # by title
    opened: set[str] = field(default_factory=set)
    searched: set[str] = field(default_factory=set)

    @property
    def calls_left(self) -> int:
        return MAX_TEAM_CALLS - sum(isinstance(step, ToolCall) for step in self.steps)

    def think(self, text: str, role: ThoughtRole = ThoughtRole.THINK) -> None:
        self.steps.append(Thought(text, role))

    def call(self, thought: str, call: ToolCall) -> str:
        """Call a tool after a thought, and return what it finds."""
        self.think(thought)
        found = self.observe(call)
        self.steps += [call, found]
        for url in URL_REGEX.findall(found.text):
            title = parse_page_title(self.site, url)
            if title is not None and title not in self.addresses:
                self.addresses[title] = url
                self.titles.append(title)
        return found.text

    def search(self, name: str) -> list[str]:
        """Search for a name, and return the titles of the results. A second search for it has
        another query."""
        query = f"{name} {SECOND_QUERY}" if name in self.searched else name
        self.searched.add(name)
        text = self.call("I must search.", ToolCall("search", {"query": query}))
        titles = [parse_page_title(self.site, url) for url in URL_REGEX.findall(text)]
        return [title for title in titles if title is not None]

    def open(self, title: str) -> PlacePage:
        """Open a page with a known address."""
        self.opened.add(title)
        call = ToolCall("crawl_page", {"url": self.addresses[title]})
        return parse_page(title, self.call(f"I open {title}.", call))

    def list_unopened(self, name: str) -> list[str]:
        """Return the titles of the known pages about a place that were not opened."""
        return [
            title
            for title in self.titles
            if title.removesuffix(GUIDE_SUFFIX) == name and title not in self.opened
        ]

    def find_page(self, name: str) -> PlacePage | None:
        """Open a known page about a place, or else the first page that a search finds."""
        found = self.list_unopened(name) or self.search(name)
        return self._open_first(found)

    def find_another_page(self, name: str) -> PlacePage | None:
        """Open another page about a place that was read about, if there is one."""
        if not self.list_unopened(name) and name not in self.searched:
            self.search(name)
        return self._open_first(self.list_unopened(name))

    def _open_first(self, titles: Sequence[str]) -> PlacePage | None:
        unopened = [title for title in titles if title not in self.opened]
        return self.open(unopened[0]) if unopened and self.calls_left else None

    def state(self, fact: FactKey) -> str:
        """Return the sentence for a fact as it was read."""
        kind = _guess_kind(self.beliefs, fact)
        return SENTENCES[kind][fact[1]][0].format(place=fact[0], value=self.beliefs.get_text(fact))


def make_web_agent_chain(reader: SiteReader) -> list[DemoStep]:
    """Return the chain of a single agent that believes the first page (ReAct)."""
    while reader.calls_left and (fact := reader.beliefs.find_unread()):
        page = reader.find_page(fact[0])
        if page is None or fact[1] not in page.values:
            break
        reader.beliefs.add(fact[0], page)
        reader.think(reader.state(fact))
    answer, conclusion = reader.beliefs.conclude()
    if conclusion:
        reader.think(conclusion)
    reader.steps.append(Answer(answer))
    return merge_thoughts(reader.steps)


@dataclass
class WebTeam:
    """Team that plans, reads, reflects, suggests and checks. `troubles` are those it has met."""

    reader: SiteReader
    troubles: set[PageTrouble] = field(default_factory=lambda: {PageTrouble.NONE})

    def run(self) -> list[DemoStep]:
        """Return the chain to the answer."""
        self._plan(f"Look up {self.reader.beliefs.question.facts()[0][0]}.", "I start.")
        checked = set[str]()
        while True:
            self._gather()
            answer, conclusion = self.reader.beliefs.conclude()
            self._suggest(answer, conclusion)
            doubtful = self._find_doubtful(checked)
            if doubtful is None:
                return self._finish(answer)
            checked.add(doubtful[0])
            self._reject(doubtful[0], bool(self.reader.beliefs.find_unread()))
            self._compare(doubtful)

    def _plan(self, text: str, thought: str) -> None:
        self.reader.think(thought)
        self.reader.think(text, ThoughtRole.PLAN)

    def _reflect(self, thought: str, grades: Sequence[str]) -> None:
        self.reader.think(thought)
        self.reader.steps.append(make_reflection(grades))

    def _gather(self) -> None:
        """Read pages until all facts are stated, no calls are left, or no page states the next."""
        while self.reader.calls_left and (fact := self.reader.beliefs.find_unread()):
            tried = self.reader.beliefs.pages.get(fact[0])
            if tried or not self._look_up(fact):
                return

    def _look_up(self, fact: FactKey) -> bool:
        """Read pages until one is about the place of a fact, and another one if it is old. Return
        whether the fact was found."""
        name = fact[0]
        for _ in range(MAX_TRIES):
            page = self.reader.find_page(name) if self.reader.calls_left else None
            if page is None:
                break
            if page.subject == name:
                self._read(fact, page)
                break
            self.troubles.add(PageTrouble.SIMILAR)
            self._reflect(f"This is {page.subject}, not {name}.", OTHER_PLACE_GRADES)
            self._plan(f"Find the page about {name}.", "I need another page.")
        return bool(self.reader.beliefs.get_text(fact))

    def _read(self, fact: FactKey, page: PlacePage) -> None:
        """Believe a page, and look for a newer one if it is old."""
        self._believe(fact, page)
        if page.age is PageAge.CURRENT:
            self._reflect(AGE_REFLECTIONS[page.age], GOOD_GRADES)
        elif page.age is PageAge.OLD and self._expects_another(fact[0]):
            self._reflect(AGE_REFLECTIONS[page.age], OLD_PAGE_GRADES)
            self._plan(f"Find a newer page about {fact[0]}.", "It may have changed.")
            self._compare(fact)
        else:
            self._reflect(AGE_REFLECTIONS[page.age], WEAK_PAGE_GRADES)

    def _compare(self, fact: FactKey) -> None:
        """Read another page about the place of a fact, and keep or change what is believed."""
        before = self.reader.beliefs.get_text(fact)
        page = self.reader.find_another_page(fact[0])
        if page is None:
            self._reflect(f"There is no other page about {fact[0]}.", WEAK_PAGE_GRADES)
            return
        self._believe(fact, page)
        if page.values.get(fact[1]) == before:
            self._reflect(f"{AGE_REFLECTIONS[page.age]} Both pages agree.", GOOD_GRADES)
        elif page.age is PageAge.CURRENT:
            self._reflect(f"{AGE_REFLECTIONS[page.age]} The other one is wrong.", GOOD_GRADES)
        else:
            self._reflect(f"{AGE_REFLECTIONS[page.age]} They contradict.", WEAK_PAGE_GRADES)

    def _believe(self, fact: FactKey, page: PlacePage) -> None:
        self.reader.beliefs.add(fact[0], page)
        if page.age is not PageAge.CURRENT:
            is_old = page.age is PageAge.OLD
            self.troubles.add(PageTrouble.OLD if is_old else PageTrouble.UNDATED)
        if self.reader.beliefs.get_text(fact):
            self.reader.think(self.reader.state(fact))

    def _expects_another(self, name: str) -> bool:
        """Return whether there may be another page about a place: one is known, or the place was
        not searched for."""
        is_possible = self.reader.list_unopened(name) or name not in self.reader.searched
        return bool(is_possible) and self.reader.calls_left > 1

    def _suggest(self, answer: str, conclusion: str) -> None:
        is_new = conclusion not in "".join(getattr(step, "text", "") for step in self.reader.steps)
        self.reader.think(f"{conclusion if is_new else ''} I know enough.".lstrip())
        self.reader.think(answer, ThoughtRole.SUGGEST)

    def _find_doubtful(self, checked: set[str]) -> FactKey | None:
        """Return a fact that is not proved and whose place may have another page, or None."""
        beliefs = self.reader.beliefs
        for fact in beliefs.iterate_read():
            is_open = fact[0] not in checked and self._expects_another(fact[0])
            if is_open and not beliefs.is_proved(fact):
                return fact
        return None

    def _reject(self, name: str, is_unknown: bool) -> None:
        """Reject the suggested answer, because the only page about a place is not current."""
        self.reader.think(f"Only one page tells of {name}, and it is not current.")
        self.reader.steps.append(make_double_check(UNKNOWN_SCORE if is_unknown else DOUBTFUL_SCORE))
        self._plan(f"Compare another page about {name}.", "It is not proved.")

    def _finish(self, answer: str) -> list[DemoStep]:
        beliefs = self.reader.beliefs
        facts = [*beliefs.iterate_read()]
        weak = [fact for fact in facts if not beliefs.is_proved(fact)]
        if any(len(beliefs.pages[fact[0]]) > 1 for fact in weak):
            self.troubles.add(PageTrouble.CONTRADICTION)
        is_proved = facts and not weak and not beliefs.find_unread()
        proof = " ".join(self.reader.state(fact) for fact in facts)
        verdict = f"So {answer} is right." if is_proved else f"So {answer} is likely."
        self.reader.think(f"{proof} {verdict}".lstrip())
        self.reader.steps.append(make_double_check(PROVED_SCORE if is_proved else UNPROVED_SCORE))
        self.reader.think("I can answer.")
        self.reader.steps.append(Answer(answer))
        return merge_thoughts(self.reader.steps)


def _guess_kind(beliefs: Beliefs, fact: FactKey) -> PlaceKind:
    """Return the kind of place whose sentence states a fact: the one with most of the relations of
    its pages."""
    read = {relation for page in beliefs.pages[fact[0]] for relation in page.values}
    kinds = [kind for kind, sentences in SENTENCES.items() if fact[1] in sentences]
    return max(kinds, key=lambda kind: len(read & SENTENCES[kind].keys()))
