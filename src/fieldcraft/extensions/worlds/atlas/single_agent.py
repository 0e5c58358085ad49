"""Scripted single agent that answers questions of Atlas with a team's errors, unrepaired."""

from __future__ import annotations

import random
from collections.abc import Sequence

from fieldcraft.extensions.worlds.atlas.facts import RELATIONS, Atlas, Route, render_statement
from fieldcraft.extensions.worlds.atlas.oracle import must_search
from fieldcraft.extensions.worlds.atlas.reading import collect_urls, make_reading_steps
from fieldcraft.extensions.worlds.base import merge_thoughts
from fieldcraft.types import Answer, DemoStep, Thought


def make_single_agent_demonstration(
    world: Atlas, path: Route, rng: random.Random, mistakes: float
) -> list[DemoStep]:
    """Return the chain of an agent that thinks and searches (ReAct, arXiv 2210.03629). It has no
    plan, reflection or check, so errors are not repaired, and its answer may be wrong.

    `rng` determines its errors and their positions; `mistakes` is the probability of each of the
    three kinds of `team.SearchMistake`: the article of another name, another fact of the article,
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
