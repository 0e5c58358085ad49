"""Helpers for tests: questions of the world Atlas, and the number of searches they require."""

import itertools
import random
import re

from fieldcraft.extensions.worlds.atlas.facts import Atlas, Route

REGIONS = ("taught", "train", "heldout")


def chains(world: Atlas, count: int, seed: int) -> list[Route]:
    """Sample questions of 1 to 3 hops from all regions."""
    rng = random.Random(seed)
    return [world.sample_path(rng, [rng.choice(REGIONS)], 1 + i % 3) for i in range(count)]


def facts_in(article: str) -> set[tuple[str, str, str]]:
    """Return the facts stated by an article: (subject, relation, object)."""
    match = re.fullmatch(r"(.+?) is a (person|company|city|country) with the (.+)\.", article)
    assert match
    found = set()
    for part in match[3].split(", the "):
        fields = re.fullmatch(r"(\w+) (.+?)(?:, in (.+))?", part)
        assert fields
        found.add((match[1], fields[1], fields[2]))
        if fields[3]:
            found.add((fields[2], "country", fields[3]))
    return found


def fewest_searches(world: Atlas, path: Route) -> int:
    """Return the minimum number of searches, by breadth-first search.

    The agent knows the taught facts, reads articles, and may look up any name that it has seen.
    """
    taught = {
        (s, r, v) for (s, r), v in world.facts.items() if world.entities[s].region == "taught"
    }
    states: list[frozenset[str]] = [frozenset()]
    for searches in itertools.count():
        following = set()
        for searched in states:
            known = set(taught)
            for name in searched:
                known |= facts_in(world.make_passage(name)["text"])
            current, names = path[0], {path[0]}
            for relation in path[1:]:
                objects = [v for s, r, v in known if (s, r) == (current, relation)]
                if not objects:
                    break
                current = objects[0]
                names.add(current)
            else:
                return searches
            for name in searched:
                names |= {value for _, _, value in facts_in(world.make_passage(name)["text"])}
            following |= {searched | {name} for name in names - searched}
        states = list(following)
    raise AssertionError
