"""Scripted team of Atlas that repairs its errors, and a single agent that does not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from fieldcraft.data.world import merge_thoughts
from fieldcraft.dialects.afm_grades import make_double_check, make_reflection
from fieldcraft.extensions.worlds.atlas.facts import RELATIONS, Atlas, Fact, Route, render_statement
from fieldcraft.extensions.worlds.atlas.oracle import make_checked_answer, must_search
from fieldcraft.extensions.worlds.atlas.reading import (
    choose_call,
    collect_urls,
    make_observation,
    make_reading_steps,
)
from fieldcraft.types import Answer, DemoStep, Thought, ThoughtRole

MISTAKE_SHARE = 0.25  # fraction of chains with an error, for each kind of error
GOOD_GRADES = ("Good", "Good", "Good")  # grades, in the order of CRITERIA
MISREAD_GRADES = ("Poor", "Good", "Fair")  # the article was misread
WRONG_ARTICLE_GRADES = ("Good", "Poor", "Fair")  # the search found another article


class SearchMistake(Enum):
    """Kind of error in a chain, each of which occurs at most once."""

    SEARCH = auto()  # a search for another name; detected by the following reflection
    READ = auto()  # another fact of the article is stated; detected by the following reflection
    ANSWER = auto()  # a wrong answer is suggested; detected by the double check


def make_team_demonstration(
    world: Atlas, path: Route, rng: random.Random, mistakes: float = MISTAKE_SHARE
) -> list[DemoStep]:
    """Return the chain of a team that plans, searches for untaught facts, reflects after every
    search, and suggests and checks its answer. The final answer is correct.

    `rng` determines the errors and their positions; `mistakes` is the probability of each kind.
    """
    builder = _SearchDemonstrationBuilder(world, world.trace_path(path), rng)
    searches = builder.list_searches()
    mistake_hops = {
        mistake: rng.choice(searches)
        for mistake in (SearchMistake.SEARCH, SearchMistake.READ)
        if searches and rng.random() < mistakes
    }
    builder.plan(0)
    for number, (subject, relation, _) in enumerate(builder.hops):
        if not must_search(world, subject, relation, builder.read):
            builder.state(number)
            continue
        if mistake_hops.get(SearchMistake.SEARCH) == number:
            builder.search_for_another(number)
        builder.search(subject)
        if mistake_hops.get(SearchMistake.READ) == number:
            builder.misread(number)
        else:
            builder.state(number)
            builder.steps.append(make_reflection(GOOD_GRADES))
    if rng.random() < mistakes:
        builder.suggest_another()
    builder.answer()
    return merge_thoughts(builder.steps)


@dataclass
class _SearchDemonstrationBuilder:
    """Builder of a chain. A hop is given by its index on the path."""

    world: Atlas
    hops: Sequence[Fact]
    rng: random.Random
    steps: list[DemoStep] = field(default_factory=list)
    read: set[tuple[str, str]] = field(default_factory=set)

    def list_searches(self) -> list[int]:
        """Return the indices of the hops that need a search."""
        found, read = [], set[tuple[str, str]]()
        for number, (subject, relation, _) in enumerate(self.hops):
            if must_search(self.world, subject, relation, read):
                found.append(number)
                read |= self.world.get_article_facts(subject)
        return found

    def think(self, text: str) -> None:
        self.steps.append(Thought(text))

    def state(self, number: int) -> None:
        self.think(render_statement(*self.hops[number]))

    def plan(self, number: int) -> None:
        """Plan the path from a hop onwards."""
        subject = self.hops[number][0]
        first, *rest = [relation for _, relation, _ in self.hops[number:]]
        steps = f"Find the {first} of {subject}" + "".join(f", then the {r}" for r in rest)
        self.think(f"I start from {subject}.")
        self.steps.append(Thought(f"{steps}.", ThoughtRole.PLAN))

    def search(self, name: str) -> None:
        self.steps += make_reading_steps(self.world, name, collect_urls(self.steps))
        self.read |= self.world.get_article_facts(name)

    def search_for_another(self, number: int) -> None:
        """Search for a taught name of the same kind, so that no article reveals an untaught fact
        that is not part of the question."""
        subject = self.hops[number][0]
        names = self.world.by_kind[self.world.entities[subject].kind, "taught"]
        other = self.rng.choice([name for name in names if name != subject] or names)
        thought, action = choose_call(self.world, other, ())
        self.steps += [thought, action, make_observation(self.world, action)]
        self.think(f"This is {other}, not {subject}.")
        self.steps.append(make_reflection(WRONG_ARTICLE_GRADES))
        self.plan(number)

    def misread(self, number: int) -> None:
        """State a wrong fact of the article, detect the error, and repair it."""
        subject, relation, value = self.hops[number]
        other = self.rng.choice(self._list_other_objects(subject, relation))
        self.think(render_statement(subject, relation, other))
        self.think(f"This is wrong, as the article tells the {relation} {value}.")
        self.steps.append(make_reflection(MISREAD_GRADES))
        self.plan(number)
        self.state(number)

    def _list_other_objects(self, subject: str, relation: str) -> list[str]:
        """Return the objects of the other relations of an entity, each of another kind."""
        relations = RELATIONS[self.world.entities[subject].kind]
        return [self.world.facts[subject, other] for other in relations if other != relation]

    def suggest_another(self) -> None:
        """Suggest an intermediate entity of the path, or another fact of the last subject. The
        double check detects the error, and the plan continues from the last hop."""
        subject, relation, value = self.hops[-1]
        halfway = [hop[2] for hop in self.hops[:-1]]
        near = [*halfway, *self._list_other_objects(subject, relation)]
        wrong = self.rng.choice([name for name in near if name != value])
        self._suggest(wrong)
        self.think(f"{self._make_proof()} So {wrong} is wrong.")
        self.steps.append(make_double_check(2 if wrong in halfway else 1))
        self.plan(len(self.hops) - 1)
        self.state(len(self.hops) - 1)

    def answer(self) -> None:
        """Suggest the correct answer, check it and give it."""
        self.steps += make_checked_answer(self.hops[-1][2], self._make_proof())

    def _suggest(self, name: str) -> None:
        self.think("I know enough.")
        self.steps.append(Thought(name, ThoughtRole.SUGGEST))

    def _make_proof(self) -> str:
        """Return all facts of the path in sequence."""
        return " ".join(render_statement(*hop) for hop in self.hops)


def make_single_agent_demonstration(
    world: Atlas, path: Route, rng: random.Random, mistakes: float
) -> list[DemoStep]:
    """Return the chain of an agent that thinks and searches (ReAct, arXiv 2210.03629). It has no
    plan, reflection or check, so errors are not repaired, and its answer may be wrong.

    `rng` determines its errors and their positions; `mistakes` is the probability of each of the
    three kinds of `SearchMistake`: the article of another name, another fact of the article,
    and an answer that is not the end of the chain.
    """
    relations = path[1:]
    subject, steps, read, subjects = path[0], list[DemoStep](), set[tuple[str, str]](), list[str]()
    wrong_search_index, wrong_fact_index = (
        _draw_mistake_index(relations, rng, mistakes) for _ in range(2)
    )
    for index, relation in enumerate(relations):
        kind = world.entities[subject].kind
        if relation not in RELATIONS[kind]:  # an earlier error led to another kind
            break
        source, stated_relation = subject, relation
        if must_search(world, subject, relation, read):
            if index == wrong_search_index:
                source = rng.choice([n for n in world.by_kind[kind, "taught"] if n != subject])
            steps += make_reading_steps(world, source, collect_urls(steps))
            read |= world.get_article_facts(source)
            if index == wrong_fact_index:
                stated_relation = rng.choice(
                    [other for other in RELATIONS[kind] if other != relation]
                )
        value = world.facts[source, stated_relation]
        steps.append(Thought(render_statement(subject, relation, value)))
        subjects.append(subject)
        subject = value
    if rng.random() < mistakes:
        subject = rng.choice(subjects)
    return merge_thoughts([*steps, Answer(subject)])


def _draw_mistake_index(
    relations: Sequence[str], rng: random.Random, mistakes: float
) -> int | None:
    """Return the position of an error, or None if there is none."""
    return rng.randrange(len(relations)) if rng.random() < mistakes else None
