"""Ways in which an agent comes to read the article of a name.

The search of an index gives the article itself. On the world's web site a search gives the address
of a page, and pages have links.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from fieldcraft.types import Action, Observation, Step, Thought
from fieldcraft.web.crawl import with_links
from fieldcraft.web.providers import make_result
from fieldcraft.web.search import format_results
from fieldcraft.web.text import Page
from fieldcraft.worlds.atlas.articles import stated_facts
from fieldcraft.worlds.atlas.facts import Atlas
from fieldcraft.worlds.pages import address, links_of, place_of, snippet, text_of

SEARCHING = "I must search."
OPENING = "I open {}."
ADDRESS = re.compile(r"https?://[^\s()]+")


def act(world: Atlas, name: str, addresses: Collection[str]) -> tuple[Thought, Action]:
    """Return the thought and the call that lead to the article of a name.

    `addresses` are those that the agent has met; a page whose address it knows needs no search.
    """
    for place in _places(world, name):
        if place in addresses:
            return Thought(OPENING.format(name)), Action("crawl_page", {"url": place})
    return Thought(SEARCHING), Action("search", {"query": name})


def next_move(
    world: Atlas, name: str, last: Step | None, addresses: Collection[str]
) -> Thought | Action:
    """Return the next of the two steps of `act`: the call if the last step was that thought."""
    thought, action = act(world, name, addresses)
    intends = isinstance(last, Thought) and last.text.endswith(thought.text)
    return action if intends else thought


def found_by(world: Atlas, action: Action) -> Observation:
    """Return the observation that a tool gives for a call. Raises ValueError if the call names no
    article, because the world does not know what a ranking would find for it, nor other pages."""
    match action:
        case Action("search", {"query": str(name)}) if name in world.entities:
            return Observation(_result(world, name))
        case Action("crawl_page", {"url": str(url)}) if world.site is not None:
            title = place_of(world.site, url)
            if title in world.entities:
                return Observation(_page(world, title))
    raise ValueError(f"the world does not know what {action} finds")


def reading_steps(world: Atlas, name: str, addresses: Collection[str] = ()) -> list[Step]:
    """Return the thoughts, calls and observations of an agent until it has read the article of a
    name. `addresses` as in `act`."""
    thought, action = act(world, name, addresses)
    found = found_by(world, action)
    steps: list[Step] = [thought, action, found]
    if world.site is None or action.tool == "crawl_page":
        return steps
    return steps + reading_steps(world, name, addresses_in(found.text))


def addresses_in(text: str) -> set[str]:
    """Return the addresses that a text names."""
    return set(ADDRESS.findall(text))


def addresses_met(steps: Iterable[Step]) -> set[str]:
    """Return all addresses that the observations among some steps name."""
    return {a for step in steps if isinstance(step, Observation) for a in addresses_in(step.text)}


def shown_facts(world: Atlas, name: str) -> set[tuple[str, str]]:
    """Return the facts (subject, relation) that the result of a search for a name states."""
    return true_facts(world, found_by(world, Action("search", {"query": name})).text)


def true_facts(world: Atlas, text: str) -> set[tuple[str, str]]:
    """Return the facts (subject, relation) that the articles in a text state as they are."""
    return {(s, r) for s, r, value in stated_facts(text) if world.facts.get((s, r)) == value}


def _result(world: Atlas, name: str) -> str:
    """Return the result of a search for a name. It holds one passage or page."""
    article = world.passage(name)
    if world.site is None:
        return f'result 1: "{article["title"]}"\n{article["text"]}'
    url = address(world.site, name)
    shown = snippet(article["text"], world.snippet_parts)
    return format_results([make_result(name, url, shown)])


def _page(world: Atlas, name: str) -> str:
    """Return the page of an entity as the tool `crawl_page` gives it."""
    assert world.site is not None
    links = tuple(links_of(world.site, name, world.named_by(name)))
    page = Page(text_of(world.passage(name)["text"]), links)
    return f"{address(world.site, name)}\n\n{with_links(page)}"


def _places(world: Atlas, name: str) -> list[str]:
    """Return where a page is, and where a link may say that it is."""
    if world.site is None:
        return []
    return [address(world.site, name), address(world.site, name, "moved")]
