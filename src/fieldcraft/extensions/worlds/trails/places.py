"""Places, their neighbours, and the articles about them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from fieldcraft.extensions.worlds.names import draw_unused_name
from fieldcraft.types import Task

DIRECTIONS = ("north", "east", "south", "west")


@dataclass(frozen=True)
class TrailMap:
    """Places, and the neighbour of each in every direction. The map is not a grid: opposite
    directions are unrelated, so a place is mentioned only in the article of its predecessor."""

    neighbours: dict[tuple[str, str], str]  # (place, direction) -> place

    @property
    def places(self) -> list[str]:
        return [place for place, direction in self.neighbours if direction == DIRECTIONS[0]]

    def render_article(self, place: str) -> str:
        """Return the article of a place."""
        return " ".join(render_fact(d, place, self.neighbours[place, d]) for d in DIRECTIONS)

    def passages(self) -> list[dict[str, str]]:
        return [{"id": p, "title": p, "text": self.render_article(p)} for p in self.places]

    def trace_walk(self, walk: Walk) -> list[str]:
        """Return the places on a walk, including its start and end."""
        found = [walk.start]
        for _ in range(walk.steps):
            found.append(self.neighbours[found[-1], walk.direction])
        return found

    def make_task(self, walk: Walk, split: str) -> Task:
        """Return the question of a walk. Every place on the way has to be looked up."""
        meta = {
            "split": split,
            "hops": walk.steps,
            "cluster": walk.start,
            "known": False,
            "calls_optimal": walk.steps,
        }
        name = f"trails:{walk.start}/{walk.direction}/{walk.steps}"
        return Task(name, str(walk), (self.trace_walk(walk)[-1],), meta)


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk: a number of steps in one direction. Its string form is the question."""

    start: str
    direction: str
    steps: int

    def __str__(self) -> str:
        return f"Go {self.steps} times {self.direction} from {self.start}. Where are you?"


def render_fact(direction: str, place: str, neighbour: str) -> str:
    return f"{direction.title()} of {place} lies {neighbour}."


def draw_map(rng: random.Random, count: int, used: set[str]) -> TrailMap:
    """Draw a map of `count` new places, whose names are added to `used`."""
    places = [draw_unused_name("place", rng, used) for _ in range(count)]
    return TrailMap(
        {
            (place, direction): other
            for place in places
            for direction, other in zip(
                DIRECTIONS, _draw_neighbours(rng, places, place), strict=True
            )
        }
    )


def _draw_neighbours(rng: random.Random, places: list[str], place: str) -> list[str]:
    """Draw a different neighbour for each direction."""
    found = [other for other in rng.sample(places, len(DIRECTIONS) + 1) if other != place]
    return found[: len(DIRECTIONS)]


def draw_walks(rng: random.Random, trail_map: TrailMap, steps: range) -> Iterator[Walk]:
    """Yield distinct walks that visit no place twice, cycling through the numbers of steps. The
    iteration ends when further walks have become hard to find."""
    places, seen = trail_map.places, set[Walk]()
    for attempt in range(50 * len(places)):
        walk = Walk(rng.choice(places), rng.choice(DIRECTIONS), steps[attempt % len(steps)])
        places_on_way = trail_map.trace_walk(walk)
        if walk not in seen and len(set(places_on_way)) == len(places_on_way):
            seen.add(walk)
            yield walk
