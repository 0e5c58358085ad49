"""Places, their neighbours, and the articles that tell of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from fieldcraft.types import Task
from fieldcraft.worlds.naming import fresh_name

DIRECTIONS = ("north", "east", "south", "west")


@dataclass(frozen=True)
class Map:
    """Places, and the place that lies next in each direction. It is no grid: going back does not
    lead back, so a place can be found in the article before it and nowhere else."""

    neighbours: dict[tuple[str, str], str]  # (place, direction) -> place

    @property
    def places(self) -> list[str]:
        return [place for place, direction in self.neighbours if direction == DIRECTIONS[0]]

    def article(self, place: str) -> str:
        """Return what a place's article says."""
        return " ".join(fact(d, place, self.neighbours[place, d]) for d in DIRECTIONS)

    def passages(self) -> list[dict[str, str]]:
        return [{"id": p, "title": p, "text": self.article(p)} for p in self.places]

    def way(self, walk: Walk) -> list[str]:
        """Return the places that a walk comes through, its start and its end among them."""
        found = [walk.start]
        for _ in range(walk.steps):
            found.append(self.neighbours[found[-1], walk.direction])
        return found

    def task(self, walk: Walk, split: str) -> Task:
        """Return the question of a walk. Every place on the way has to be looked up."""
        meta = {
            "split": split,
            "hops": walk.steps,
            "cluster": walk.start,
            "known": False,
            "calls_optimal": walk.steps,
        }
        name = f"trails:{walk.start}/{walk.direction}/{walk.steps}"
        return Task(name, str(walk), (self.way(walk)[-1],), meta)


@dataclass(frozen=True, slots=True)
class Walk:
    """Number of steps in one direction. As text it is the question."""

    start: str
    direction: str
    steps: int

    def __str__(self) -> str:
        return f"Go {self.steps} times {self.direction} from {self.start}. Where are you?"


def fact(direction: str, place: str, neighbour: str) -> str:
    return f"{direction.title()} of {place} lies {neighbour}."


def new_map(rng: random.Random, count: int, used: set[str]) -> Map:
    """Draw a map of `count` new places. Their names are added to `used`."""
    places = [fresh_name("place", rng, used) for _ in range(count)]
    return Map(
        {
            (place, direction): other
            for place in places
            for direction, other in zip(DIRECTIONS, _others(rng, places, place), strict=True)
        }
    )


def _others(rng: random.Random, places: list[str], place: str) -> list[str]:
    """Draw a neighbour for each direction, all of them different."""
    found = [other for other in rng.sample(places, len(DIRECTIONS) + 1) if other != place]
    return found[: len(DIRECTIONS)]


def walks(rng: random.Random, on: Map, steps: range) -> Iterator[Walk]:
    """Yield distinct walks that come through no place twice, the numbers of steps in turn. They end
    when it has become hard to find another one."""
    places, seen = on.places, set[Walk]()
    for attempt in range(50 * len(places)):
        walk = Walk(rng.choice(places), rng.choice(DIRECTIONS), steps[attempt % len(steps)])
        way = on.way(walk)
        if walk not in seen and len(set(way)) == len(way):
            seen.add(walk)
            yield walk
