"""Combinations of searches and page visits that answer questions on the web site of Atlas.

A search shows the start of an article, its page all of it. The address of a page follows from its
title, so it needs no search.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from fieldcraft.extensions.worlds.atlas.facts import Atlas, Route
from fieldcraft.extensions.worlds.atlas.reading import get_snippet_facts
from fieldcraft.records.costs import WAYS_KEY
from fieldcraft.types import Task

SEARCH, PAGE = "web_search", "crawl_page"  # the tools


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
