"""A team of scripted agents that answers questions of Atlas. It makes mistakes and repairs them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from fieldcraft.dialects.afm import double_check, reflection
from fieldcraft.types import Role, Step, Thought
from fieldcraft.worlds.atlas.facts import RELATIONS, Atlas, Fact, Route, statement
from fieldcraft.worlds.atlas.oracle import checked_answer, must_search
from fieldcraft.worlds.atlas.reading import act, addresses_met, found_by, reading_steps
from fieldcraft.worlds.base import merge_thoughts

MISTAKES = 0.25  # the share of the chains with a mistake, for each kind of mistake
GOOD = ("Good", "Good", "Good")  # grades, in the order of CRITERIA
MISLED = ("Poor", "Good", "Fair")  # what was read is not what the article says
MISSED = ("Good", "Poor", "Fair")  # the search found another article


class Mistake(Enum):
    """Mistake that can occur in a chain, once of each kind."""

    SEARCH = auto()  # a search for another name; the reflection after it sees that
    READ = auto()  # another fact of the article; the reflection after it sees that
    ANSWER = auto()  # a wrong answer is suggested; the double check sees that


def team_demonstration(
    world: Atlas, path: Route, rng: random.Random, mistakes: float = MISTAKES
) -> list[Step]:
    """Return the chain of a team that plans, searches for what the model was not taught, reflects
    after every search, and suggests and checks its answer, which is right in the end.

    `rng` fixes which mistakes it makes and where; `mistakes` is the probability of each kind.
    """
    work = _Work(world, world.hops(path), rng)
    searches = work.searches()
    at = {
        mistake: rng.choice(searches)
        for mistake in (Mistake.SEARCH, Mistake.READ)
        if searches and rng.random() < mistakes
    }
    work.plan(0)
    for number, (subject, relation, _) in enumerate(work.hops):
        if not must_search(world, subject, relation, work.read):
            work.state(number)
            continue
        if at.get(Mistake.SEARCH) == number:
            work.search_for_another(number)
        work.search(subject)
        if at.get(Mistake.READ) == number:
            work.misread(number)
        else:
            work.state(number)
            work.steps.append(reflection(GOOD))
    if rng.random() < mistakes:
        work.suggest_another()
    work.answer()
    return merge_thoughts(work.steps)


@dataclass
class _Work:
    """A chain while it grows. A hop is given by its place on the path."""

    world: Atlas
    hops: Sequence[Fact]
    rng: random.Random
    steps: list[Step] = field(default_factory=list)
    read: set[tuple[str, str]] = field(default_factory=set)

    def searches(self) -> list[int]:
        """Return the hops that need a search."""
        found, read = [], set[tuple[str, str]]()
        for number, (subject, relation, _) in enumerate(self.hops):
            if must_search(self.world, subject, relation, read):
                found.append(number)
                read |= self.world.reveals(subject)
        return found

    def think(self, text: str) -> None:
        self.steps.append(Thought(text))

    def state(self, number: int) -> None:
        self.think(statement(*self.hops[number]))

    def plan(self, number: int) -> None:
        """Plan the way from a hop on."""
        subject = self.hops[number][0]
        first, *rest = [relation for _, relation, _ in self.hops[number:]]
        steps = f"Find the {first} of {subject}" + "".join(f", then the {r}" for r in rest)
        self.think(f"I start from {subject}.")
        self.steps.append(Thought(f"{steps}.", Role.PLAN))

    def search(self, name: str) -> None:
        self.steps += reading_steps(self.world, name, addresses_met(self.steps))
        self.read |= self.world.reveals(name)

    def search_for_another(self, number: int) -> None:
        """Search for a taught name of the same kind, so that no article teaches an untaught fact
        that the question does not ask for."""
        subject = self.hops[number][0]
        names = self.world.by_kind[self.world.entities[subject].kind, "taught"]
        other = self.rng.choice([name for name in names if name != subject] or names)
        thought, action = act(self.world, other, ())
        self.steps += [thought, action, found_by(self.world, action)]
        self.think(f"This is {other}, not {subject}.")
        self.steps.append(reflection(MISSED))
        self.plan(number)

    def misread(self, number: int) -> None:
        """State another fact of the article than the right one, see it, and repair it."""
        subject, relation, value = self.hops[number]
        other = self.rng.choice(self._others(subject, relation))
        self.think(statement(subject, relation, other))
        self.think(f"This is wrong, as the article tells the {relation} {value}.")
        self.steps.append(reflection(MISLED))
        self.plan(number)
        self.state(number)

    def _others(self, subject: str, relation: str) -> list[str]:
        """Return the objects of the other relations of an entity, each of another kind."""
        told = RELATIONS[self.world.entities[subject].kind]
        return [self.world.facts[subject, other] for other in told if other != relation]

    def suggest_another(self) -> None:
        """Suggest an entity on the way to the answer, or another fact of the last one. The double
        check sees that, and the plan goes on from the last hop."""
        subject, relation, value = self.hops[-1]
        halfway = [hop[2] for hop in self.hops[:-1]]
        near = [*halfway, *self._others(subject, relation)]
        wrong = self.rng.choice([name for name in near if name != value])
        self._suggest(wrong)
        self.think(f"{self._proof()} So {wrong} is wrong.")
        self.steps.append(double_check(2 if wrong in halfway else 1))
        self.plan(len(self.hops) - 1)
        self.state(len(self.hops) - 1)

    def answer(self) -> None:
        """Suggest the right answer, check it and give it."""
        self.steps += checked_answer(self.hops[-1][2], self._proof())

    def _suggest(self, name: str) -> None:
        self.think("I know enough.")
        self.steps.append(Thought(name, Role.SUGGEST))

    def _proof(self) -> str:
        """Return all facts of the path, one after the other."""
        return " ".join(statement(*hop) for hop in self.hops)
