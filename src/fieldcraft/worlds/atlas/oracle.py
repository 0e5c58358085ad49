"""Ways to answer questions of Atlas: the best, a wasteful one, without a search, by guessing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fieldcraft.dialects.afm import double_check
from fieldcraft.types import Action, Answer, Observation, Role, Step, Task, Thought
from fieldcraft.worlds import base
from fieldcraft.worlds.atlas.facts import RELATIONS, Atlas, Fact, Route, statement
from fieldcraft.worlds.atlas.reading import (
    act,
    addresses_in,
    addresses_met,
    found_by,
    next_move,
    reading_steps,
    shown_facts,
    true_facts,
)
from fieldcraft.worlds.base import merge_thoughts
from fieldcraft.worlds.pages import address

UNKNOWN = Answer("unknown")
CAREFUL_SHARE = 0.5  # of the questions for which a wasteful teacher looks everything up
HASTY_SHARE = 0.5  # of the articles whose page a wasteful teacher opens without a search


@dataclass
class Progress:
    """Progress of a chain of thoughts and searches along a path.

    A fact of the path is stated if a thought says it after the facts before it. Wrong facts and
    facts off the path change nothing. `read` are the true facts (subject, relation) of
    observations, `addresses` are those that they name.
    """

    world: Atlas
    hops: list[Fact]
    stated: int = 0
    read: set[tuple[str, str]] = field(default_factory=set)
    addresses: set[str] = field(default_factory=set)
    last: Step | None = None

    def take(self, step: Step) -> None:
        """Take one more step."""
        if isinstance(step, Thought):
            self._hear(step.text)
        elif isinstance(step, Observation):
            self.read |= true_facts(self.world, step.text)
            self.addresses |= addresses_in(step.text)
        self.last = step

    def _hear(self, thought: str) -> None:
        end = 0
        while self.stated < len(self.hops):
            said = statement(*self.hops[self.stated])
            start = thought.find(said, end)
            if start < 0:
                break
            end = start + len(said)
            self.stated += 1

    def next_step(self, searches: Searches) -> Step:
        """Return the next step, with a search if `searches` says so. Raises ValueError if there is
        no next step, or if the world cannot know it."""
        if isinstance(self.last, Answer):
            raise ValueError("nothing follows an answer")
        if isinstance(self.last, Action):
            return found_by(self.world, self.last)
        if self.stated == len(self.hops):
            return Answer(self.hops[-1][2])
        subject, relation, value = self.hops[self.stated]
        if not searches(self, subject, relation):
            return Thought(statement(subject, relation, value))
        return next_move(self.world, subject, self.last, self.addresses)


Searches = Callable[[Progress, str, str], bool]  # of a subject and a relation of it


def is_needed(progress: Progress, subject: str, relation: str) -> bool:
    """Return whether a fact is neither taught nor read."""
    return must_search(progress.world, subject, relation, progress.read)


def is_unread(progress: Progress, subject: str, relation: str) -> bool:
    """Return whether the article about the subject has not been read, even if its facts are
    known."""
    kind = progress.world.entities[subject].kind
    return not {(subject, told) for told in RELATIONS[kind]} <= progress.read


def must_search(world: Atlas, subject: str, relation: str, read: set[tuple[str, str]]) -> bool:
    """Return whether a fact is neither taught nor among those read."""
    return world.entities[subject].region != "taught" and (subject, relation) not in read


@dataclass(frozen=True)
class AtlasOracle(base.Oracle):
    """Oracle that knows the whole encyclopedia, but answers as the best model would that was taught
    only a part of it. It states what that model was taught or has read, and searches for the
    rest."""

    world: Atlas

    def next_step(self, task: Task, so_far: Sequence[Step]) -> Step:
        progress = Progress(self.world, self.world.hops(path_of(task)))
        for step in so_far:
            progress.take(step)
        return progress.next_step(is_needed)

    def least_calls(self, task: Task) -> int:
        return self.world.optimal_calls(path_of(task))

    def demonstration(self, task: Task) -> list[Step]:
        return demonstration(self.world, path_of(task))

    def guess(self, task: Task, rng: random.Random) -> list[Step]:
        return guess(self.world, path_of(task), rng)

    def decisions(self, task: Task, rng: random.Random) -> Iterator[Decision]:
        return decisions(self.world, path_of(task), rng)


def path_of(task: Task) -> Route:
    """Return the path that a question of this world asks for."""
    return tuple(task.meta["path"])


def demonstration(world: Atlas, path: Route) -> list[Step]:
    """Return the steps in which the oracle answers, with as few searches as possible."""
    return _answer(world, path, is_needed)


def wasteful_demonstration(world: Atlas, path: Route, rng: random.Random) -> list[Step]:
    """Return the answer of a wasteful teacher. For every second question it also looks up what is
    known, each article once. This teaches the model to search for what it knows. On a web site it
    does not look at costs either: see `_lookup`."""
    careful = rng.random() < CAREFUL_SHARE
    if world.site is None:
        return _answer(world, path, is_unread if careful else is_needed)
    steps: list[Step] = []
    read: set[tuple[str, str]] = set()
    for subject, relation, value in world.hops(path):
        is_known = world.entities[subject].region == "taught" and not careful
        if not is_known and (subject, relation) not in read:
            found = _lookup(world, subject, relation, rng)
            texts = [step.text for step in found if isinstance(step, Observation)]
            read |= true_facts(world, "\n".join(texts))
            steps += found
        steps.append(Thought(statement(subject, relation, value)))
    return merge_thoughts([*steps, *checked_answer(value)])


def checked_answer(value: str, proof: str = "") -> list[Step]:
    """Return an answer as web agents give it, after they have suggested and checked it."""
    return [
        Thought("I know enough."),
        Thought(value, Role.SUGGEST),
        Thought(f"{proof} So {value} is right.".lstrip()),
        double_check(4),
        Thought("I can answer."),
        Answer(value),
    ]


def _lookup(world: Atlas, subject: str, relation: str, rng: random.Random) -> list[Step]:
    """Return the steps of a wasteful teacher up to a fact on a web site: every second time the page
    at once, else a search, and the page if that does not tell the fact."""
    assert world.site is not None
    steps: list[Step] = []
    if rng.random() >= HASTY_SHARE:
        searched = act(world, subject, ())
        steps += [*searched, found_by(world, searched[1])]
        if (subject, relation) in shown_facts(world, subject):
            return steps
    opened = act(world, subject, [address(world.site, subject)])
    return [*steps, *opened, found_by(world, opened[1])]


def _answer(world: Atlas, path: Route, searches: Searches) -> list[Step]:
    progress = Progress(world, world.hops(path))
    steps: list[Step] = []
    while not isinstance(progress.last, Answer):
        steps.append(progress.next_step(searches))
        progress.take(steps[-1])
    return merge_thoughts(steps)


def closed_book(world: Atlas, path: Route) -> list[Step]:
    """Return the chain without a search. It ends at the first fact that was not taught."""
    steps: list[Step] = []
    for subject, relation, value in world.hops(path):
        if world.entities[subject].region != "taught":
            return merge_thoughts([*steps, Thought(f"I do not know {subject}."), UNKNOWN])
        steps.append(Thought(statement(subject, relation, value)))
    return merge_thoughts([*steps, Answer(value)])


def guess(world: Atlas, path: Route, rng: random.Random) -> list[Step]:
    """Return the chain of statements, each untaught fact replaced by a name of the right kind."""
    thoughts, subject = [], path[0]
    for relation in path[1:]:
        entity = world.entities[subject]
        value = world.facts[subject, relation]
        if entity.region != "taught":
            value = rng.choice(world.shown_names(RELATIONS[entity.kind][relation]))
        thoughts.append(Thought(statement(subject, relation, value)))
        subject = value
    return merge_thoughts([*thoughts, Answer(subject)])


# -- decisions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision(base.Decision):
    """`ends` tells whether the answer follows the fact that is decided on."""

    ends: bool


def decisions(world: Atlas, path: Route, rng: random.Random) -> Iterator[Decision]:
    """Yield the contrastive steps along a demonstration.

    If the fact is neither taught nor read, acting is chosen over a guess (a random name of the
    right kind). If it is known, stating it is chosen over a needless search. At the end of the
    chain, answering is chosen over a needless search.
    """
    steps: list[Step] = []
    read: set[tuple[str, str]] = set()
    hops = world.hops(path)
    for number, (subject, relation, value) in enumerate(hops, start=1):
        ends = number == len(hops)
        known = Thought(statement(subject, relation, value))
        before, met = tuple(merge_thoughts(steps)), addresses_met(steps)
        if must_search(world, subject, relation, read):
            names = world.shown_names(world.entities[value].kind)
            guessed = rng.choice([name for name in names if name != value])
            wrong = Thought(statement(subject, relation, guessed))
            yield Decision(before, act(world, subject, met), (wrong,), ends)
            steps += reading_steps(world, subject, met)
            read |= world.reveals(subject)
        else:
            yield Decision(before, (known,), act(world, subject, met), ends)
        steps.append(known)
    answer, last = Answer(value), act(world, value, addresses_met(steps))
    yield Decision(tuple(merge_thoughts(steps)), (answer,), last, True)
