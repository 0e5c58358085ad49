"""Questions of Atlas, to train and to test on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fieldcraft.types import Task, UserError
from fieldcraft.worlds.atlas.facts import START_WEIGHT, Atlas, Region, Route

HOPS = (1, 2, 3)
SPLITS = {
    "heldout": "All entities held out, the answer too",
    "heldout_start": "The first entity held out",
    "train": "The training region",
    "known": "Wholly known",
    "mixed": "As in training: known and held-out entities mixed",
    "four_hops": "One hop more than in training",
    "unseen_chains": "Relation chains never trained",
}


def train_tasks(world: Atlas, seed: int, count: int) -> list[Task]:
    """Return up to `count` distinct training questions. Questions that the model can answer without
    a search are among them, except those that evaluations ask."""
    rng = random.Random(f"tasks:{seed}")
    found: dict[Route, None] = {}
    for attempt in range(20 * count):
        if len(found) == count:
            break
        path = world.sample_path(rng, ["train", "taught"], HOPS[attempt % len(HOPS)])
        if not world.is_test(path):
            found[path] = None
    return [world.task(path, "train") for path in found]


def evaluation_tasks(world: Atlas, seed: int, splits: Mapping[str, int]) -> list[Task]:
    """Return distinct questions to test on; `splits` says how many of each, at most. No split
    depends on the others.

    Only `train` asks what training may ask verbatim. Everywhere else the model has to search for
    held-out entities only, whose names and facts no training shows, and questions that need no
    search are those that no demonstration and no training question asks (`Atlas.is_test`). Of these
    a base model is asked for single facts, which it learns so, and for nothing longer.

    Raises UserError for questions along reserved chains where there are none.
    """
    if splits.get("unseen_chains") and not world.reserved:
        raise UserError(
            "evaluation.splits.unseen_chains needs world.reserved_chains: set both or none."
        )
    return [
        world.task(path, name)
        for name, rule in RULES.items()
        for path in rule.sample(world, random.Random(f"{name}:{seed}"), splits.get(name, 0))
    ]


@dataclass(frozen=True)
class Rule:
    """The questions of a split: the regions of their first entities, the number of hops, and a
    condition on the paths."""

    starts: Sequence[Region]
    holds: Callable[[Atlas, Route], bool]
    hops: Sequence[int] = HOPS
    along: Callable[[Atlas, str, int], Sequence[tuple[str, ...]]] = Atlas.chains

    def sample(self, world: Atlas, rng: random.Random, count: int) -> list[Route]:
        """Sample up to `count` distinct paths, as evenly over the hops and as near to START_WEIGHT
        as the world allows."""
        if count == 0:
            return []
        open_ = [self._shuffled(world, rng, hops) for hops in self.hops]
        found: list[Route] = []
        while open_ and len(found) < count:
            queue = open_.pop(0)
            if path := next(queue, None):
                found.append(path)
                open_.append(queue)
        return found

    def _shuffled(self, world: Atlas, rng: random.Random, hops: int) -> Iterator[Route]:
        """Yield all paths of a length, in random order."""
        places = {
            (kind, region): self._paths(world, names, kind, hops)
            for (kind, region), names in world.by_kind.items()
            if region in self.starts
        }
        for paths in places.values():
            rng.shuffle(paths)
        while open_ := [place for place, paths in places.items() if paths]:
            [place] = rng.choices(open_, [START_WEIGHT[kind] for kind, _ in open_])
            yield places[place].pop()

    def _paths(self, world: Atlas, names: Sequence[str], kind: str, hops: int) -> list[Route]:
        every = ((name, *chain) for name in names for chain in self.along(world, kind, hops))
        return [path for path in every if self.holds(world, path)]


def _is_heldout(world: Atlas, path: Route) -> bool:
    answer = world.hops(path)[-1][2]
    return world.regions_of(path) | {world.entities[answer].region} == {"heldout"}


def _is_new(world: Atlas, path: Route) -> bool:
    """Return whether a path needs no fact of the training region and is asked in no training."""
    regions = world.regions_of(path)
    return "train" not in regions and ("heldout" in regions or world.is_test(path))


def _any(_: Atlas, __: Route) -> bool:
    return True


BOTH = ("heldout", "taught")  # where training has untaught and taught entities
RULES = {
    "heldout": Rule(["heldout"], _is_heldout),
    "heldout_start": Rule(["heldout"], _any),
    "train": Rule(["train"], _any),
    "known": Rule(["taught"], Atlas.is_test),
    "mixed": Rule(BOTH, _is_new),
    "four_hops": Rule(BOTH, _is_new, hops=(4,)),
    "unseen_chains": Rule(BOTH, _is_new, hops=(2, 3), along=Atlas.reserved_chains),
}
