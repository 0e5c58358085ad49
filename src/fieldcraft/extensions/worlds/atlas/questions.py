"""Training and evaluation questions of Atlas."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fieldcraft.extensions.worlds.atlas.facts import START_WEIGHTS, Atlas, Region, Route
from fieldcraft.types import Task, UserError

NUM_HOPS = (1, 2, 3)
SPLITS = {
    "heldout": "All entities held out, the answer too",
    "heldout_start": "The first entity held out",
    "train": "The training region",
    "known": "Wholly known",
    "mixed": "As in training: known and held-out entities mixed",
    "four_hops": "One hop more than in training",
    "unseen_chains": "Relation chains never trained",
}


def draw_train_tasks(world: Atlas, seed: int, count: int) -> list[Task]:
    """Return up to `count` distinct training questions. They include questions that the model can
    answer without a search, except those in evaluations."""
    rng = random.Random(f"tasks:{seed}")
    found: dict[Route, None] = {}
    for attempt in range(20 * count):
        if len(found) == count:
            break
        path = world.sample_path(rng, ["train", "taught"], NUM_HOPS[attempt % len(NUM_HOPS)])
        if not world.is_test(path):
            found[path] = None
    return [world.make_task(path, "train") for path in found]


def draw_evaluation_tasks(world: Atlas, seed: int, splits: Mapping[str, int]) -> list[Task]:
    """Return distinct evaluation questions; `splits` is the maximum number per split. Splits are
    independent of one another.

    Only `train` may repeat training questions verbatim. In all other splits, searches are needed
    only for held-out entities, whose names and facts never occur in training, and questions without
    a search are those that occur in no demonstration and no training question (`Atlas.is_test`).
    Of the latter, a base model is trained on single-fact questions, from which it learns the facts,
    but not on longer ones.

    Raises UserError for questions along reserved chains if the world has none.
    """
    if splits.get("unseen_chains") and not world.reserved:
        raise UserError(
            "evaluation.splits.unseen_chains needs world.reserved_chains: set both or none."
        )
    return [
        world.make_task(path, name)
        for name, rule in SPLIT_RULES.items()
        for path in rule.sample(world, random.Random(f"{name}:{seed}"), splits.get(name, 0))
    ]


@dataclass(frozen=True)
class SplitRule:
    """Rule for the questions of a split: the regions of their first entities, the numbers of hops,
    and a condition on the paths."""

    start_regions: Sequence[Region]
    condition: Callable[[Atlas, Route], bool]
    hops: Sequence[int] = NUM_HOPS
    list_chains: Callable[[Atlas, str, int], Sequence[tuple[str, ...]]] = Atlas.list_chains

    def sample(self, world: Atlas, rng: random.Random, count: int) -> list[Route]:
        """Sample up to `count` distinct paths, as evenly over the hops and as close to
        START_WEIGHTS as the world allows."""
        if count == 0:
            return []
        queues = [self._iterate_shuffled(world, rng, hops) for hops in self.hops]
        found: list[Route] = []
        while queues and len(found) < count:
            queue = queues.pop(0)
            if path := next(queue, None):
                found.append(path)
                queues.append(queue)
        return found

    def _iterate_shuffled(self, world: Atlas, rng: random.Random, hops: int) -> Iterator[Route]:
        """Yield all paths of a given length, in random order."""
        path_pools = {
            (kind, region): self._list_paths(world, names, kind, hops)
            for (kind, region), names in world.by_kind.items()
            if region in self.start_regions
        }
        for paths in path_pools.values():
            rng.shuffle(paths)
        while starts := [start for start, paths in path_pools.items() if paths]:
            [start] = rng.choices(starts, [START_WEIGHTS[kind] for kind, _ in starts])
            yield path_pools[start].pop()

    def _list_paths(self, world: Atlas, names: Sequence[str], kind: str, hops: int) -> list[Route]:
        every = ((name, *chain) for name in names for chain in self.list_chains(world, kind, hops))
        return [path for path in every if self.condition(world, path)]


def _is_heldout(world: Atlas, path: Route) -> bool:
    answer = world.trace_path(path)[-1][2]
    return world.get_regions(path) | {world.entities[answer].region} == {"heldout"}


def _is_new(world: Atlas, path: Route) -> bool:
    """Return whether a path uses no fact of the training region and never occurs in training."""
    regions = world.get_regions(path)
    return "train" not in regions and ("heldout" in regions or world.is_test(path))


def _accept_any(_: Atlas, __: Route) -> bool:
    return True


UNTAUGHT_AND_TAUGHT = ("heldout", "taught")  # evaluation counterpart of the training regions
SPLIT_RULES = {
    "heldout": SplitRule(["heldout"], _is_heldout),
    "heldout_start": SplitRule(["heldout"], _accept_any),
    "train": SplitRule(["train"], _accept_any),
    "known": SplitRule(["taught"], Atlas.is_test),
    "mixed": SplitRule(UNTAUGHT_AND_TAUGHT, _is_new),
    "four_hops": SplitRule(UNTAUGHT_AND_TAUGHT, _is_new, hops=(4,)),
    "unseen_chains": SplitRule(
        UNTAUGHT_AND_TAUGHT, _is_new, hops=(2, 3), list_chains=Atlas.list_reserved_chains
    ),
}
