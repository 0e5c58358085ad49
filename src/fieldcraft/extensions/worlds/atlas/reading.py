"""Ways in which an agent obtains the article of a name, and combinations of tools that suffice.

An index search returns the article itself. On the world's web site, a search returns the address of
a page, and pages have links. There a search shows the start of an article, its page all of it. The
address of a page follows from its title, so it needs no search.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import product

from fieldcraft.extensions.web.crawl import append_links
from fieldcraft.extensions.web.page_text import PageText
from fieldcraft.extensions.web.providers import make_result
from fieldcraft.extensions.web.search import format_results
from fieldcraft.extensions.worlds.atlas.facts import Atlas, Route, parse_facts
from fieldcraft.extensions.worlds.pages import (
    make_links,
    make_page_text,
    make_page_url,
    make_snippet,
    parse_page_title,
)
from fieldcraft.records.costs import WAYS_KEY
from fieldcraft.types import DemoStep, Observation, Task, Thought, ToolCall

SEARCH_THOUGHT = "I must search."
OPEN_THOUGHT = "I open {}."
URL_REGEX = re.compile(r"https?://[^\s()]+")
SEARCH, PAGE = "web_search", "crawl_page"  # the tools of the web site


def choose_call(world: Atlas, name: str, urls: Collection[str]) -> tuple[Thought, ToolCall]:
    """Return the thought and the call that lead to the article of a name.

    `urls` are the URLs known to the agent; a page with a known URL needs no search.
    """
    for url in _list_page_urls(world, name):
        if url in urls:
            return Thought(OPEN_THOUGHT.format(name)), ToolCall("crawl_page", {"url": url})
    return Thought(SEARCH_THOUGHT), ToolCall("search", {"query": name})


def choose_next_step(
    world: Atlas, name: str, last: DemoStep | None, urls: Collection[str]
) -> Thought | ToolCall:
    """Return the next of the two steps of `choose_call`: the call if the last step was its
    thought."""
    thought, action = choose_call(world, name, urls)
    has_thought = isinstance(last, Thought) and last.text.endswith(thought.text)
    return action if has_thought else thought


def make_observation(world: Atlas, action: ToolCall) -> Observation:
    """Return the observation of a call. Raises ValueError if the call names no article, because the
    world knows neither other pages nor the ranking for other queries."""
    match action:
        case ToolCall("search", {"query": str(name)}) if name in world.entities:
            return Observation(_render_search_result(world, name))
        case ToolCall("crawl_page", {"url": str(url)}) if world.site is not None:
            title = parse_page_title(world.site, url)
            if title in world.entities:
                return Observation(_render_page(world, title))
    raise ValueError(f"the world does not know what {action} finds")


def make_reading_steps(world: Atlas, name: str, urls: Collection[str] = ()) -> list[DemoStep]:
    """Return the thoughts, calls and observations of an agent until it has read the article of a
    name. `urls` as in `choose_call`."""
    thought, action = choose_call(world, name, urls)
    found = make_observation(world, action)
    steps: list[DemoStep] = [thought, action, found]
    if world.site is None or action.tool == "crawl_page":
        return steps
    return steps + make_reading_steps(world, name, find_urls(found.text))


def find_urls(text: str) -> set[str]:
    """Return the URLs in a text."""
    return set(URL_REGEX.findall(text))


def collect_urls(steps: Iterable[DemoStep]) -> set[str]:
    """Return all URLs in the observations among the steps."""
    return {a for step in steps if isinstance(step, Observation) for a in find_urls(step.text)}


def get_snippet_facts(world: Atlas, name: str) -> set[tuple[str, str]]:
    """Return the facts (subject, relation) in the search result for a name."""
    return find_true_facts(world, make_observation(world, ToolCall("search", {"query": name})).text)


def find_true_facts(world: Atlas, text: str) -> set[tuple[str, str]]:
    """Return the facts (subject, relation) that the articles in a text state correctly."""
    return {(s, r) for s, r, value in parse_facts(text) if world.facts.get((s, r)) == value}


def _render_search_result(world: Atlas, name: str) -> str:
    """Return the search result for a name, with one passage or page."""
    article = world.make_passage(name)
    if world.site is None:
        return f'result 1: "{article["title"]}"\n{article["text"]}'
    url = make_page_url(world.site, name)
    snippet_text = make_snippet(article["text"], world.snippet_parts)
    return format_results([make_result(name, url, snippet_text)])


def _render_page(world: Atlas, name: str) -> str:
    """Return the page of an entity as the tool `crawl_page` returns it."""
    assert world.site is not None
    links = tuple(make_links(world.site, name, world.list_named_entities(name)))
    page = PageText(make_page_text(world.make_passage(name)["text"]), links)
    return f"{make_page_url(world.site, name)}\n\n{append_links(page)}"


def _list_page_urls(world: Atlas, name: str) -> list[str]:
    """Return the URL of a page, and its former URL, which links may use."""
    if world.site is None:
        return []
    return [make_page_url(world.site, name), make_page_url(world.site, name, "moved")]


# -- combinations of searches and page visits --------------------------------------------------


def enumerate_tool_mixes(world: Atlas, *paths: Route) -> list[dict[str, int]]:
    """Return the counts of calls by tool after which every fact on the paths is known: each number
    of searches with the minimum number of pages, without dominated combinations, which need more of
    both than another."""
    facts = {
        (subject, relation) for path in paths for subject, relation, _ in world.trace_path(path)
    }
    subjects = sorted({subject for subject, _ in facts})
    snippets = {name: get_snippet_facts(world, name) for name in subjects}
    pages: dict[int, int] = {}  # number of searches -> minimum number of pages
    for tools in product((None, SEARCH, PAGE), repeat=len(subjects)):
        by_tool = {SEARCH: snippets.__getitem__, PAGE: world.get_article_facts}
        used = zip(subjects, tools, strict=True)
        texts = {name: by_tool[tool](name) for name, tool in used if tool is not None}
        if facts <= world.find_known_facts([path[0] for path in paths], texts):
            searches = tools.count(SEARCH)
            pages[searches] = min(tools.count(PAGE), pages.get(searches, len(subjects)))
    return [
        {SEARCH: searches, PAGE: count}
        for searches, count in sorted(pages.items())
        if all(pages[fewer] > count for fewer in pages if fewer < searches)
    ]


def add_tool_mixes(world: Atlas, tasks: Iterable[Task]) -> list[Task]:
    """Return the tasks of a world with their tool mixes in the metadata."""
    return [
        replace(
            task,
            meta={**task.meta, WAYS_KEY: enumerate_tool_mixes(world, tuple(task.meta["path"]))},
        )
        for task in tasks
    ]
