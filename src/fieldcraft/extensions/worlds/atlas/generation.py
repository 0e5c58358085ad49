"""Generation of Atlas worlds: the world of a run, and variants for the same base model."""

from __future__ import annotations

import random
from dataclasses import replace

from fieldcraft.extensions.worlds.atlas.facts import RELATIONS, Atlas, Entity, Region, RelationChain
from fieldcraft.extensions.worlds.names import SYLLABLES, draw_unused_name
from fieldcraft.types import UserError

ENTITIES_PER_PERSON = {"person": 1.0, "company": 0.2, "city": 0.2, "country": 0.1}
MIN_NEW_ENTITIES = 20  # minimum number of new entities of a kind in a regenerated world
NUM_OTHER_SYLLABLES = 24  # size of the pool of other syllables, so that many names start alike


def generate_atlas(
    people: int,
    taught: float,
    heldout: float,
    seed: int,
    reserved: int = 0,
    site: str | None = None,
    snippet_parts: int | None = None,
) -> Atlas:
    """Draw the real world of a run.

    Args:
        people: number of people; companies, cities and countries follow by ENTITIES_PER_PERSON.
        taught: fraction of the entities of each kind whose facts the base model learns.
        heldout: fraction of the others that never occur in training.
        seed: seed; the world is determined by all arguments.
        reserved: number of pairs of relations that never follow one another in training, each with
            a different first relation, so that every relation can be followed by another.
        site: address of the web site with the articles, if there is one.
        snippet_parts: number of parts of an article in search results of that site.

    Raises:
        UserError: a region would be empty, so that no question could be asked about it.
    """
    rng = random.Random(f"atlas:{seed}")
    by_kind: dict[tuple[str, Region], list[str]] = {}
    used: set[str] = set()
    for kind, share in ENTITIES_PER_PERSON.items():
        total = round(people * share)
        counts = {"taught": round(total * taught)}
        counts["heldout"] = round((total - counts["taught"]) * heldout)
        counts["train"] = total - counts["taught"] - counts["heldout"]
        for region, count in counts.items():
            if count < 1:
                raise UserError(
                    f"the world has no {kind} in the region '{region}': raise world.people"
                    f" ({people}), or move world.taught ({taught}) and world.heldout ({heldout})"
                    " away from 0 and 1."
                )
            by_kind[kind, region] = [draw_unused_name(kind, rng, used) for _ in range(count)]
    world = _draw_facts(by_kind, {}, rng)
    pairs = _draw_reserved_pairs(reserved, random.Random(f"reserved:{seed}"))
    return replace(world, reserved=pairs, site=site, snippet_parts=snippet_parts)


def _draw_reserved_pairs(count: int, rng: random.Random) -> frozenset[RelationChain]:
    """Draw pairs of relations with distinct first relations."""
    targets = {
        relation: target
        for relations in RELATIONS.values()
        for relation, target in relations.items()
    }
    firsts = rng.sample(sorted(targets), count)
    return frozenset((first, rng.choice(list(RELATIONS[targets[first]]))) for first in firsts)


def regenerate_untaught(world: Atlas, rng: random.Random) -> Atlas:
    """Draw another world for the same base model. Taught facts are the same, and all other facts
    are drawn again. Untaught entities are new, except those that taught facts mention.

    A model can follow demonstrations in such worlds only if it reads search results. Held-out names
    never occur in them. Many syllables of new names come from taught names: otherwise a model
    confuses unseen names with known ones that share a syllable. The other syllables come from a
    small pool, so that the first syllable does not identify a name within an article.
    """
    used = set(world.entities)
    taught = {f: world.facts[f] for f in world.taught_facts}
    mentioned = set(taught.values())
    by_kind: dict[tuple[str, Region], list[str]] = {}
    syllable_pool = rng.sample(SYLLABLES, NUM_OTHER_SYLLABLES)
    for (kind, region), names in world.by_kind.items():
        if region == "taught":
            by_kind[kind, region] = names
        elif region == "train":
            count = max(len(names), MIN_NEW_ENTITIES)
            taught_pools = world.taught_syllables[kind]
            new_names = [
                draw_unused_name(kind, rng, used, taught_pools, syllable_pool) for _ in range(count)
            ]
            by_kind[kind, region] = [n for n in names if n in mentioned] + new_names
    atlas = _draw_facts(by_kind, taught, rng)
    return replace(
        atlas, reserved=world.reserved, site=world.site, snippet_parts=world.snippet_parts
    )


def generate_unfamiliar(
    world: Atlas, rng: random.Random, num_syllables: int | None = None
) -> Atlas:
    """Draw a small world in which all names are new, so articles about it can only be read.

    `num_syllables` is the number of distinct syllables in its names. With fewer syllables, more
    names start alike, and only a model that attends to more than the last syllable can copy them.
    """
    used = set(world.entities)
    sizes = {"person": 6, "company": 3, "city": 3, "country": 2}
    syllable_pool = SYLLABLES if num_syllables is None else rng.sample(SYLLABLES, num_syllables)
    by_kind = {
        (k, "train"): [draw_unused_name(k, rng, used, others=syllable_pool) for _ in range(n)]
        for k, n in sizes.items()
    }
    return _draw_facts(by_kind, {}, rng, taught_objects=0.0)


def _draw_facts(
    by_kind: dict[tuple[str, Region], list[str]],
    known_facts: dict[tuple[str, str], str],
    rng: random.Random,
    taught_objects: float = 0.5,
) -> Atlas:
    """Draw an object for every (subject, relation) missing in `known_facts`. Training entities
    never refer to held-out names; a fraction of the objects is taught, so that chains cross the
    boundary of the model's knowledge in both directions."""
    entities = {n: Entity(n, kind, region) for (kind, region), ns in by_kind.items() for n in ns}
    facts: dict[tuple[str, str], str] = {}
    for name, entity in entities.items():
        other = "heldout" if entity.region == "heldout" else "train"
        for relation, target in RELATIONS[entity.kind].items():
            if (name, relation) in known_facts:
                facts[name, relation] = known_facts[name, relation]
                continue
            region = "taught" if rng.random() < taught_objects else other
            options = by_kind[target, region]
            if (target, region) == (entity.kind, entity.region):  # no self-reference
                options = [n for n in options if n != name] or options
            facts[name, relation] = rng.choice(options)
    return Atlas(entities, facts, by_kind)
