"""Parsing of articles: the facts that a text states, and whether it has the form of an article."""

from __future__ import annotations

import re

from fieldcraft.extensions.worlds.atlas.facts import PART_SEPARATOR, RELATIONS, Fact
from fieldcraft.extensions.worlds.pages import ELLIPSIS

ARTICLE_REGEX = re.compile(r"([A-Z][\w ]*?) is a (\w+) with the ([^.\n]*)")
PART_REGEX = re.compile(r"(\w+) ([^,]+)(?:, in ([^,]+))?")  # one part of an article


def parse_facts(text: str) -> set[Fact]:
    """Return the facts that the articles in a text state, true or not. From a broken article,
    return the facts that can be parsed."""
    found = set()
    for subject, _, body in ARTICLE_REGEX.findall(text):
        for part in body.split(PART_SEPARATOR):
            if match := PART_REGEX.fullmatch(part.removesuffix(ELLIPSIS).strip()):
                relation, value, country = match.groups()
                found.add((subject, relation, value))
                if country:
                    found.add((value, "country", country))
    return found


def is_article(title: str, text: str) -> bool:
    """Return whether a text has the form of a complete article about `title`, true or not."""
    match = ARTICLE_REGEX.fullmatch(text.removesuffix("."))
    if match is None or not text.endswith(".") or match[1] != title or match[2] not in RELATIONS:
        return False
    parts = [PART_REGEX.fullmatch(part) for part in match[3].split(PART_SEPARATOR)]
    form = [(part[1], part[3] is not None) for part in parts if part]
    return form == [(r, r == "headquarters") for r in RELATIONS[match[2]]] and None not in parts
