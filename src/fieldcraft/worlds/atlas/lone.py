"""One scripted agent that answers questions of Atlas. It makes a team's mistakes and sees none."""

from __future__ import annotations

import random
from collections.abc import Sequence

from fieldcraft.types import Answer, Step, Thought
from fieldcraft.worlds.atlas.facts import RELATIONS, Atlas, Route, statement
from fieldcraft.worlds.atlas.oracle import must_search
from fieldcraft.worlds.atlas.reading import addresses_met, reading_steps
from fieldcraft.worlds.base import merge_thoughts


def lone_demonstration(
    world: Atlas, path: Route, rng: random.Random, mistakes: float
) -> list[Step]:
    """Return the chain of an agent that thinks and searches (ReAct, arXiv 2210.03629). It has
    neither a plan nor a reflection nor a check, so nothing repairs its mistakes, and its answer may
    be wrong.

    `rng` fixes which mistakes it makes and where; `mistakes` is the probability of each of the
    three kinds of `team.Mistake`: the article of another name, another fact of the article, and an
    answer that is not what the chain led to.
    """
    relations = path[1:]
    subject, steps, read, met = path[0], list[Step](), set[tuple[str, str]](), list[str]()
    astray, misread = (_place(relations, rng, mistakes) for _ in range(2))
    for place, relation in enumerate(relations):
        kind = world.entities[subject].kind
        if relation not in RELATIONS[kind]:  # an earlier mistake led to something else
            break
        source, told = subject, relation
        if must_search(world, subject, relation, read):
            if place == astray:
                source = rng.choice([n for n in world.by_kind[kind, "taught"] if n != subject])
            steps += reading_steps(world, source, addresses_met(steps))
            read |= world.reveals(source)
            if place == misread:
                told = rng.choice([other for other in RELATIONS[kind] if other != relation])
        value = world.facts[source, told]
        steps.append(Thought(statement(subject, relation, value)))
        met.append(subject)
        subject = value
    if rng.random() < mistakes:
        subject = rng.choice(met)
    return merge_thoughts([*steps, Answer(subject)])


def _place(relations: Sequence[str], rng: random.Random, mistakes: float) -> int | None:
    """Return where a mistake happens, if it does."""
    return rng.randrange(len(relations)) if rng.random() < mistakes else None
