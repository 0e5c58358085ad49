"""Questions of Atlas, to train and to test on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fieldcraft.types import Task, UserError
from fieldcraft.worlds.atlas.facts import Atlas, Route

HOPS = (1, 2, 3)
SPLITS = {
    "heldout": "Held-out entities",
    "train": "The training region",
    "known": "Wholly known",
    "mixed": "As in training: known and held-out entities mixed",
    "four_hops": "One hop more than in training",
    "unseen_chains": "Relation chains never trained",
}


def train_tasks(world: Atlas, seed: int, count: int) -> list[Task]:
    """Distinct training questions; those wholly within the model's knowledge stay in the mix."""
    return _distinct(world, ["train", "taught"], "train", count, random.Random(f"tasks:{seed}"))


def evaluation_tasks(world: Atlas, seed: int, splits: Mapping[str, int]) -> list[Task]:
    """Distinct questions of 1 to 3 hops: held out, of the training region (`train`), wholly known;
    and of those that start at held-out and at known entities alike, as training questions start at
    untaught and known ones: `mixed` as in training, then longer than any question of it, and (2 and
    3 hops) along reserved chains. `splits` says how many of each; the questions do not depend on
    its order.

    Raises UserError for questions along reserved chains where there are none.
    """
    count = dict.fromkeys(SPLITS, 0) | dict(splits)
    if count["unseen_chains"] and not world.reserved:
        raise UserError(
            "evaluation.splits.unseen_chains needs world.reserved_chains: set both or none."
        )
    rng = random.Random(f"evaluation:{seed}")
    both = ["heldout", "taught"]
    known_paths = [path for hops in HOPS for path in world.paths(["taught"], hops)]
    sample = rng.sample(known_paths, min(count["known"], len(known_paths)))
    return [
        *_distinct(world, ["heldout"], "heldout", count["heldout"], rng),
        *_distinct(world, ["train"], "train", count["train"], rng),
        *(world.task(path, "known") for path in sample),
        *_distinct(world, both, "mixed", count["mixed"], rng),
        *_distinct(world, both, "four_hops", count["four_hops"], rng, hops=(4,)),
        *_tasks(
            world,
            "unseen_chains",
            count["unseen_chains"],
            (2, 3),
            partial(world.sample_reserved_path, rng, both),
        ),
    ]


def _distinct(
    world: Atlas,
    regions: Sequence[str],
    split: str,
    count: int,
    rng: random.Random,
    hops: Sequence[int] = HOPS,
) -> list[Task]:
    """Up to `count` distinct questions along chains that training may show."""
    return _tasks(world, split, count, hops, partial(world.sample_path, rng, regions))


def _tasks(
    world: Atlas, split: str, count: int, hops: Sequence[int], sample: Callable[[int], Route]
) -> list[Task]:
    """Up to `count` distinct questions, as evenly over the hops as the world allows."""
    found: dict[Route, None] = {}
    for attempt in range(20 * count):
        if len(found) == count:
            break
        found[sample(hops[attempt % len(hops)])] = None
    return [world.task(path, split) for path in found]
