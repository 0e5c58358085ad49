"""Questions of the world Atlas, and how many searches they need; for tests."""

import itertools
import random
import re

from fieldcraft.worlds.atlas.facts import Atlas, Route

REGIONS = ("taught", "train", "heldout")


def chains(world: Atlas, count: int, seed: int) -> list[Route]:
    """Random questions of 1 to 3 hops from all regions."""
    rng = random.Random(seed)
    return [world.sample_path(rng, [rng.choice(REGIONS)], 1 + i % 3) for i in range(count)]


def facts_in(article: str) -> set[tuple[str, str, str]]:
    """What a reader learns from an article: (subject, relation, object)."""
    match = re.fullmatch(r"(.+?) is a (person|company|city|country) with the (.+)\.", article)
    assert match
    found = set()
    for part in match[3].split(", the "):
        told = re.fullmatch(r"(\w+) (.+?)(?:, in (.+))?", part)
        assert told
        found.add((match[1], told[1], told[2]))
        if told[3]:
            found.add((told[2], "country", told[3]))
    return found


def fewest_searches(world: Atlas, path: Route) -> int:
    """By trying: an agent that knows the taught facts and reads articles, and may look up any name
    that it has come across, breadth first."""
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
            at, names = path[0], {path[0]}
            for relation in path[1:]:
                objects = [v for s, r, v in known if (s, r) == (at, relation)]
                if not objects:
                    break
                at = objects[0]
                names.add(at)
            else:
                return searches
            for name in searched:
                names |= {value for _, _, value in facts_in(world.make_passage(name)["text"])}
            following |= {searched | {name} for name in names - searched}
        states = list(following)
    raise AssertionError
