"""Synthesis of harder Atlas questions: one hop deeper, or several questions joined into one.

`intersect` asks for the common end of two paths, `compare` for the one of four entities whose chain
ends at a given name, `count` for the number of distinct ends of the chains of four entities. A
guess among four is right once in four times: the correct entity of `compare` is at a random
position, and the numbers of `count` are drawn uniformly.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fieldcraft.extensions.worlds.atlas.facts import (
    RELATIONS,
    Atlas,
    RelationChain,
    Route,
    parse_facts,
    render_phrase,
)
from fieldcraft.types import Task

DEPTH = "depth"
JOIN_KINDS = ("intersect", "compare", "count")
REGIONS = ("train", "taught")  # as in training: no held-out name
JOINED_HOPS = (1, 2)  # hops of each joined question
NUM_ENTITIES = 4  # entities in `compare` and `count`
MAX_TRIES = 200
PLURALS = {"person": "people", "company": "companies", "city": "cities", "country": "countries"}


def deepen_question(world: Atlas, task: Task, rng: random.Random) -> Task | None:
    """Return a question about the answer of another question of this world, or None if it can only
    be extended by reserved chains or to evaluation questions."""
    path: Route = tuple(task.meta["path"])
    kind = world.entities[world.trace_path(path)[-1][2]].kind
    further = [(*path, relation) for relation in RELATIONS[kind]]
    allowed = [p for p in further if not world.is_reserved(p[1:]) and not world.is_test(p)]
    if not allowed:
        return None
    made = world.make_task(rng.choice(allowed), "train")
    meta = made.meta | {"made": DEPTH, "paths": [made.meta["path"]], "from": [task.id]}
    return Task(made.id, made.question, made.answers, meta)


def join_questions(world: Atlas, kind: str, rng: random.Random) -> Task | None:
    """Return a question of one of JOIN_KINDS, or None if the random draws do not fit together."""
    if kind == "intersect":
        return _intersect(world, rng)
    first = world.sample_path(rng, REGIONS, rng.choice(JOINED_HOPS))
    entity_kind = world.entities[first[0]].kind
    names = [name for region in REGIONS for name in world.by_kind[entity_kind, region]]
    if len(names) < NUM_ENTITIES:
        return None
    join = _compare if kind == "compare" else _count
    return join(world, first[1:], names, rng)


def _intersect(world: Atlas, rng: random.Random) -> Task | None:
    first_path = world.sample_path(rng, REGIONS, rng.choice(JOINED_HOPS))
    for _ in range(MAX_TRIES):
        second_path = world.sample_path(rng, REGIONS, rng.choice(JOINED_HOPS))
        if second_path[0] != first_path[0] and _get_end(world, second_path) == _get_end(
            world, first_path
        ):
            parts = " and the ".join(
                f"{render_phrase(p[1:])} of {p[0]}" for p in (first_path, second_path)
            )
            name = _get_end(world, first_path)
            question = f"Which {world.entities[name].kind} is both the {parts}?"
            return _make_task(world, "intersect", question, name, [first_path, second_path])
    return None


def _compare(
    world: Atlas, relations: RelationChain, names: Sequence[str], rng: random.Random
) -> Task | None:
    chosen = rng.sample(names, NUM_ENTITIES)
    paths = [(name, *relations) for name in chosen]
    ends = [_get_end(world, path) for path in paths]
    correct_index = rng.randrange(NUM_ENTITIES)
    if ends.count(ends[correct_index]) > 1:
        return None
    question = (
        f"For which of {_join_names(chosen)} is the {render_phrase(relations)} "
        f"{ends[correct_index]}?"
    )
    return _make_task(
        world, "compare", question, chosen[correct_index], paths, value=ends[correct_index]
    )


def _count(
    world: Atlas, relations: RelationChain, names: Sequence[str], rng: random.Random
) -> Task | None:
    """Draw a question for a number of entities. The number is drawn first, so that numbers are as
    uniform as the world allows: all but `number - 1` of the entities share their end."""
    number = rng.randint(1, NUM_ENTITIES)
    by_end: dict[str, list[str]] = {}
    for name in names:
        by_end.setdefault(_get_end(world, (name, *relations)), []).append(name)
    together = NUM_ENTITIES - number + 1
    large = [end for end, found in by_end.items() if len(found) >= together]
    if not large or len(by_end) < number:
        return None
    shared = rng.choice(large)
    others = rng.sample([end for end in by_end if end != shared], number - 1)
    chosen = rng.sample(by_end[shared], together) + [rng.choice(by_end[end]) for end in others]
    rng.shuffle(chosen)
    kind = PLURALS[world.entities[shared].kind]
    question = (
        f"How many different {kind} are the {render_phrase(relations)} of {_join_names(chosen)}?"
    )
    return _make_task(
        world, "count", question, str(number), [(name, *relations) for name in chosen]
    )


def _get_end(world: Atlas, path: Route) -> str:
    return world.trace_path(path)[-1][2]


def _join_names(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _make_task(
    world: Atlas, kind: str, question: str, answer: str, paths: Sequence[Route], **more: str
) -> Task:
    hops = [hop for path in paths for hop in world.trace_path(path)]
    meta: dict[str, Any] = {
        "split": "train",
        "hops": len(hops),
        "cluster": paths[0][0],
        "known": all(world.entities[subject].region == "taught" for subject, _, _ in hops),
        "calls_optimal": world.optimal_calls(*paths),
        "made": kind,
        "paths": [list(path) for path in paths],
        **more,
    }
    identity = "+".join("/".join(path) for path in paths)
    return Task(f"atlas:{kind}:{identity}", question, (answer,), meta)


# -- derivation of answers from articles -----------------------------------------------------------


def collect_facts(passages: Iterable[Mapping[str, str]]) -> dict[tuple[str, str], str]:
    """Return (subject, relation) -> object, as stated in the texts of articles."""
    stated = (fact for passage in passages for fact in parse_facts(passage["text"]))
    return {(subject, relation): value for subject, relation, value in stated}


def derive_answer(facts: Mapping[tuple[str, str], str], task: Task) -> str | None:
    """Return the answer of a question of this module according to the articles, or None if they do
    not contain it."""
    ends = []
    for subject, *relations in task.meta["paths"]:
        entity: str | None = subject
        for relation in relations:
            entity = None if entity is None else facts.get((entity, relation))
        if entity is None:
            return None
        ends.append(entity)
    match task.meta["made"]:
        case "count":
            return str(len(set(ends)))
        case "compare":
            found = [
                path[0]
                for path, end in zip(task.meta["paths"], ends, strict=True)
                if end == task.meta["value"]
            ]
            return found[0] if len(found) == 1 else None
        case _:
            return ends[0] if len(set(ends)) == 1 else None
