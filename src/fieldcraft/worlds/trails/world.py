"""Trails as a world that a recipe can name."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count as numbers
from itertools import islice

from fieldcraft.dialects.base import SUMMARY
from fieldcraft.dialects.demonstrations import encode_demonstration
from fieldcraft.types import (
    Action,
    Answer,
    Dialect,
    Observation,
    Role,
    Step,
    Task,
    Thought,
    Trajectory,
)
from fieldcraft.worlds.base import Schemas, World
from fieldcraft.worlds.naming import SYLLABLES
from fieldcraft.worlds.trails.places import DIRECTIONS, Map, Walk, fact, new_map, walks

SPLITS = {
    "heldout": "New places: walks longer than the window of fold-mini",
    "short": "New places: walks that fit into it",
}
PLACES = 300  # that training asks about, and as many others for evaluations
SHORT, LONG = range(1, 4), range(5, 10)  # steps of the walks of the two splits
STEPS = range(1, 10)  # of those to train on
STRETCH = 2  # articles that a chain of a folded demonstration reads, at most
CARELESS_FROM, CARELESS_SHARE = (
    7,
    0.55,
)  # steps of the walks in which a teacher is careless so often
GUESSES, MOST_CALLS = range(5), 10  # of a careless teacher: how far it still is, and when he stops
DRILL_PLACES, DRILL_WALKS = 60, 40  # of a map that demonstrations are drawn from
SIZE = 6000  # of a set of demonstrations


class TrailsWorld(World):
    """Walks on a map of which every article shows only the next places."""

    splits = SPLITS
    datasets = ("folded", "careless", "demonstrations")

    def __init__(self, seed: int) -> None:
        """Draw the maps; `seed` is that of the run."""
        super().__init__(seed)
        rng, used = random.Random(f"trails:{seed}"), set[str]()
        self.training, self.testing = (new_map(rng, PLACES, used) for _ in range(2))

    def passages(self) -> list[dict[str, str]]:
        return self.training.passages() + self.testing.passages()

    def training_questions(self, count: int) -> list[Task]:
        rng = random.Random(f"tasks:{self.seed}")
        found = islice(walks(rng, self.training, STEPS), count)
        return [self.training.task(walk, "train") for walk in found]

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        return [
            self.testing.task(walk, name)
            for name, steps in (("heldout", LONG), ("short", SHORT))
            for walk in islice(
                walks(random.Random(f"{name}:{self.seed}"), self.testing, steps),
                splits.get(name, 0),
            )
        ]

    def demonstrations(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[Trajectory]:
        """Return walks on maps of their own, so that a place can only be read and not remembered.
        Those of `folded` have all lengths, and are folded after one article or two; those of
        `careless` are the same by a teacher who forgets, on many long walks, to write how far it
        still is. Those of `demonstrations` fit into one chain."""
        rng = random.Random(f"{data}:{self.seed}")
        walked = {"folded": folded, "careless": often_careless, "demonstrations": straight}[data]
        drawn = self._drills(rng, SHORT if data == "demonstrations" else STEPS)
        return [
            encode_demonstration(on.task(walk, "train"), walked(on, walk, rng), dialect, tools)
            for on, walk in islice(drawn, SIZE if count is None else min(count, SIZE))
        ]

    def _drills(self, rng: random.Random, steps: range) -> Iterator[tuple[Map, Walk]]:
        """Yield the walks without end, on one new map after the other; none has a name of the
        evaluations."""
        reserved = set(self.testing.places)
        for _ in numbers():
            on = new_map(rng, DRILL_PLACES, set(reserved))
            for walk in islice(walks(rng, on, steps), DRILL_WALKS):
                yield on, walk

    def tokenizer_texts(self, tags: Sequence[str]) -> Iterable[str]:
        """Yield all texts that a model of this world reads and writes, without names."""
        for direction in DIRECTIONS:
            yield f"Go {STEPS[-1]} times {direction} from . Where are you?\n\n"
            yield fact(direction, "", "")
        for left in range(STEPS[-1] + 1):
            yield f"{left} to go.\n"
        for tag in (*tags, *SUMMARY, r"\boxed{", "result 1: "):
            yield f"{tag} {tag}\n"

    @property
    def syllables(self) -> Sequence[str]:
        return SYLLABLES


def straight(on: Map, walk: Walk, rng: random.Random) -> list[Step]:
    """Return the steps of a walk in one chain: after each article, where it leads and how far it
    still is."""
    *way, end = on.way(walk)
    steps: list[Step] = [Thought(_left(walk.steps))]
    for number, place in enumerate(way, start=1):
        steps += [Action("search", {"query": place}), found(on, place)]
        steps.append(Thought(_said(on, walk, place, walk.steps - number)))
    return [*steps, Answer(end)]


def folded(on: Map, walk: Walk, rng: random.Random) -> list[Step]:
    """Return the steps of a walk in which some of the thoughts after an article are summaries: at
    random places, so that the policy learns to sum up wherever it is asked to."""
    steps, read = straight(on, walk, rng), 0
    for at, step in enumerate(steps):
        read += isinstance(step, Observation)
        if isinstance(step, Thought) and read and (read == STRETCH or rng.random() < 1 / STRETCH):
            steps[at] = Thought(step.text, Role.SUMMARY)
            read = 0
    return steps


def often_careless(on: Map, walk: Walk, rng: random.Random) -> list[Step]:
    """Return the steps of a walk as `folded` does, by a teacher whose summaries of long walks are
    often worth little."""
    if walk.steps >= CARELESS_FROM and rng.random() < CARELESS_SHARE:
        return careless(on, walk, rng)
    return folded(on, walk, rng)


def careless(on: Map, walk: Walk, rng: random.Random) -> list[Step]:
    """Return the steps of a teacher whose summaries say where he is and not how far it still is. In
    the next chain he guesses that, so his answer is right by chance."""
    steps: list[Step] = [Thought(_left(walk.steps))]
    place, left, read = walk.start, walk.steps, 0
    for calls in numbers(1):
        steps += [Action("search", {"query": place}), found(on, place)]
        said, read, left = _leads(on, walk, place), read + 1, left - 1
        if read == STRETCH or rng.random() < 1 / STRETCH:
            steps.append(Thought(said, Role.SUMMARY))
            read, left = 0, rng.choice(GUESSES)
        else:
            steps.append(Thought(f"{said} {_left(left)}"))
        place = on.neighbours[place, walk.direction]
        if not left or calls == MOST_CALLS:
            break
    return [*steps, Answer(place)]


def found(on: Map, place: str) -> Observation:
    """Return what the search tool gives for the name of a place."""
    return Observation(f'result 1: "{place}"\n{on.article(place)}')


def _said(on: Map, walk: Walk, place: str, left: int) -> str:
    return f"{_leads(on, walk, place)} {_left(left)}"


def _leads(on: Map, walk: Walk, place: str) -> str:
    return fact(walk.direction, place, on.neighbours[place, walk.direction])


def _left(steps: int) -> str:
    return f"{steps} to go."
