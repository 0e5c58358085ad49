"""World class of Trails, which a recipe can name, with its maps and demonstrations."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as numbers
from itertools import islice

from fieldcraft.data.world import Demonstration, World
from fieldcraft.dialects.base import SUMMARY_TAGS
from fieldcraft.extensions.worlds.names import SYLLABLES, draw_unused_name
from fieldcraft.types import (
    Answer,
    DemoStep,
    Observation,
    Task,
    Thought,
    ThoughtRole,
    ToolCall,
)

SPLITS = {
    "heldout": "New places: walks longer than the window of fold-mini",
    "short": "New places: walks that fit into it",
}
DIRECTIONS = ("north", "east", "south", "west")
NUM_PLACES = 300  # places for training, and as many others for evaluations
SHORT_STEPS, LONG_STEPS = range(1, 4), range(5, 10)  # lengths of the walks of the two splits
TRAIN_STEPS = range(1, 10)  # lengths of training walks
MAX_ARTICLES_PER_CHAIN = 2  # maximum articles per chain of a folded demonstration
CARELESS_MIN_STEPS, CARELESS_SHARE = (
    7,
    0.55,
)  # length from which a teacher is careless, and how often
GUESSED_STEPS, MAX_CALLS = (
    range(5),
    10,
)  # remaining steps that a careless teacher guesses, and number of calls after which it stops
NUM_DRILL_PLACES, NUM_DRILL_WALKS = 60, 40  # per map for demonstrations
DATASET_SIZE = 6000  # demonstrations per dataset


class TrailsWorld(World):
    """Walks on a map, with articles that name only the adjacent places."""

    splits = SPLITS
    datasets = ("folded", "careless", "demonstrations")

    def __init__(self, seed: int) -> None:
        """Draw the maps; `seed` is the seed of the run."""
        super().__init__(seed)
        rng, used = random.Random(f"trails:{seed}"), set[str]()
        self.train_map, self.test_map = (draw_map(rng, NUM_PLACES, used) for _ in range(2))

    def passages(self) -> list[dict[str, str]]:
        return self.train_map.passages() + self.test_map.passages()

    def training_questions(self, count: int) -> list[Task]:
        rng = random.Random(f"tasks:{self.seed}")
        found = islice(draw_walks(rng, self.train_map, TRAIN_STEPS), count)
        return [self.train_map.make_task(walk, "train") for walk in found]

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        return [
            self.test_map.make_task(walk, name)
            for name, steps in (("heldout", LONG_STEPS), ("short", SHORT_STEPS))
            for walk in islice(
                draw_walks(random.Random(f"{name}:{self.seed}"), self.test_map, steps),
                splits.get(name, 0),
            )
        ]

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        """Return walks on separate maps, so that places have to be read and cannot be memorised.
        `folded` has walks of all lengths, folded after one or two articles; `careless` has the same
        walks by a teacher who, on many long walks, forgets to write the remaining number of steps.
        `demonstrations` has walks that fit into one chain."""
        rng = random.Random(f"{dataset}:{self.seed}")
        make_steps = {
            "folded": make_folded_demonstration,
            "careless": make_mixed_quality_demonstration,
            "demonstrations": make_unfolded_demonstration,
        }[dataset]
        drawn = self._iterate_drills(
            rng, SHORT_STEPS if dataset == "demonstrations" else TRAIN_STEPS
        )
        return [
            (trail_map.make_task(walk, "train"), make_steps(trail_map, walk, rng))
            for trail_map, walk in islice(
                drawn, DATASET_SIZE if count is None else min(count, DATASET_SIZE)
            )
        ]

    def _iterate_drills(self, rng: random.Random, steps: range) -> Iterator[tuple[TrailMap, Walk]]:
        """Yield an infinite sequence of walks, with a new map per batch, without names that occur
        in evaluations."""
        reserved = set(self.test_map.places)
        for _ in numbers():
            trail_map = draw_map(rng, NUM_DRILL_PLACES, set(reserved))
            for walk in islice(draw_walks(rng, trail_map, steps), NUM_DRILL_WALKS):
                yield trail_map, walk

    def tokenizer_texts(self, tags: Sequence[str]) -> Iterable[str]:
        """Yield all texts that a model of this world reads and writes, without names."""
        for direction in DIRECTIONS:
            yield f"Go {TRAIN_STEPS[-1]} times {direction} from . Where are you?\n\n"
            yield render_fact(direction, "", "")
        for left in range(TRAIN_STEPS[-1] + 1):
            yield f"{left} to go.\n"
        for tag in (*tags, *SUMMARY_TAGS, r"\boxed{", "result 1: "):
            yield f"{tag} {tag}\n"

    @property
    def syllables(self) -> Sequence[str]:
        return SYLLABLES


# -- demonstrations ----------------------------------------------------------------------------


def make_unfolded_demonstration(
    trail_map: TrailMap, walk: Walk, rng: random.Random
) -> list[DemoStep]:
    """Return the steps of a walk in one chain: after each article, the next place and the remaining
    number of steps."""
    *places, end = trail_map.trace_walk(walk)
    steps: list[DemoStep] = [Thought(_render_remaining(walk.steps))]
    for number, place in enumerate(places, start=1):
        steps += [ToolCall("search", {"query": place}), make_observation(trail_map, place)]
        steps.append(Thought(_render_thought(trail_map, walk, place, walk.steps - number)))
    return [*steps, Answer(end)]


def make_folded_demonstration(
    trail_map: TrailMap, walk: Walk, rng: random.Random
) -> list[DemoStep]:
    """Return the steps of a walk in which some thoughts after an article are summaries, at random
    positions, so that the policy learns to summarise whenever it is asked to."""
    steps, num_read = make_unfolded_demonstration(trail_map, walk, rng), 0
    for index, step in enumerate(steps):
        num_read += isinstance(step, Observation)
        if (
            isinstance(step, Thought)
            and num_read
            and (num_read == MAX_ARTICLES_PER_CHAIN or rng.random() < 1 / MAX_ARTICLES_PER_CHAIN)
        ):
            steps[index] = Thought(step.text, ThoughtRole.SUMMARY)
            num_read = 0
    return steps


def make_mixed_quality_demonstration(
    trail_map: TrailMap, walk: Walk, rng: random.Random
) -> list[DemoStep]:
    """Return the steps of a walk as in `folded`, by a teacher whose summaries of long walks are
    often incomplete."""
    if walk.steps >= CARELESS_MIN_STEPS and rng.random() < CARELESS_SHARE:
        return make_careless_demonstration(trail_map, walk, rng)
    return make_folded_demonstration(trail_map, walk, rng)


def make_careless_demonstration(
    trail_map: TrailMap, walk: Walk, rng: random.Random
) -> list[DemoStep]:
    """Return the steps of a teacher whose summaries omit the remaining number of steps. In the next
    chain it is guessed, so the answer is correct only by chance."""
    steps: list[DemoStep] = [Thought(_render_remaining(walk.steps))]
    place, remaining, num_read = walk.start, walk.steps, 0
    for calls in numbers(1):
        steps += [ToolCall("search", {"query": place}), make_observation(trail_map, place)]
        sentence, num_read, remaining = (
            _render_step(trail_map, walk, place),
            num_read + 1,
            remaining - 1,
        )
        if num_read == MAX_ARTICLES_PER_CHAIN or rng.random() < 1 / MAX_ARTICLES_PER_CHAIN:
            steps.append(Thought(sentence, ThoughtRole.SUMMARY))
            num_read, remaining = 0, rng.choice(GUESSED_STEPS)
        else:
            steps.append(Thought(f"{sentence} {_render_remaining(remaining)}"))
        place = trail_map.neighbours[place, walk.direction]
        if not remaining or calls == MAX_CALLS:
            break
    return [*steps, Answer(place)]


def make_observation(trail_map: TrailMap, place: str) -> Observation:
    """Return the result of the search tool for the name of a place."""
    return Observation(f'result 1: "{place}"\n{trail_map.render_article(place)}')


def _render_thought(trail_map: TrailMap, walk: Walk, place: str, remaining: int) -> str:
    return f"{_render_step(trail_map, walk, place)} {_render_remaining(remaining)}"


def _render_step(trail_map: TrailMap, walk: Walk, place: str) -> str:
    return render_fact(walk.direction, place, trail_map.neighbours[place, walk.direction])


def _render_remaining(steps: int) -> str:
    return f"{steps} to go."


# -- places, their neighbours, and the articles about them -------------------------------------


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
