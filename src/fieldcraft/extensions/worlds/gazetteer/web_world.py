"""World of the gazetteer as a web site, which a recipe can name."""

from __future__ import annotations

import random
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, Field, PositiveInt

from fieldcraft.config.numbers import OpenFraction, UnitFraction
from fieldcraft.data.world import Demonstration
from fieldcraft.extensions.worlds.gazetteer.beliefs import Beliefs
from fieldcraft.extensions.worlds.gazetteer.editions import EditionShares, iterate_place_pages
from fieldcraft.extensions.worlds.gazetteer.geonames import read_all_cities
from fieldcraft.extensions.worlds.gazetteer.question_sampling import (
    MAX_TRAIN_TASKS,
    NUM_HOPS,
    SPLITS,
    draw_demonstrable,
)
from fieldcraft.extensions.worlds.gazetteer.team import (
    SiteReader,
    WebTeam,
    make_web_agent_chain,
)
from fieldcraft.extensions.worlds.gazetteer.world import DATASET_SIZE, GazetteerWorld
from fieldcraft.extensions.worlds.pages import validate_site_address
from fieldcraft.extensions.worlds.site_index import SiteIndex, build_site_index
from fieldcraft.types import DemoStep, Task, UserError

OVERSAMPLING = 4  # questions drawn for each one that is short enough
LEVEL_KEY = "level"  # metadata: what the team meets on the way to the answer


class GazetteerWebWorld(GazetteerWorld):
    """World of real places as a web site, some of whose pages are outdated or wrong."""

    splits = MappingProxyType({k: v for k, v in SPLITS.items() if k not in ("known", "mixed")})
    datasets = ("team",)
    toolless_datasets = ()
    pair_sets = ()

    def __init__(
        self,
        seed: int,
        cities: PositiveInt = 500,
        heldout: OpenFraction = 0.35,
        site: Annotated[str, AfterValidator(validate_site_address)] = "http://places",
        topk: PositiveInt = 2,
        links: Annotated[int, Field(ge=0)] = 3,
        hops: Annotated[int, Field(ge=1, le=max(NUM_HOPS))] = 2,
        outdated: UnitFraction = 0.2,
        undated: UnitFraction = 0.25,
        uncertain: UnitFraction = 0.15,
    ) -> None:
        """Select the places, and write their pages.

        Args:
            seed: seed of the run; it determines the held-out countries and the questions.
            cities: number of cities, the largest of each country first. Capitals and the largest
                cities of regions are added.
            heldout: fraction of the countries that do not occur in training, with all their places.
            site: address of the site.
            topk: number of results per search in demonstrations, equal to the tool's `top_k`.
            links: links of a page to other pages that it names.
            hops: maximum number of facts of a question, except in the split `four_hops`.
            outdated: fraction of the places with a current and an outdated page.
            undated: fraction of the places with a current page and one without a date, which errs.
            uncertain: fraction of the places with an outdated page and one without a date, each
                fact of which is right on one of them.

        Raises:
            UserError: a package is missing, there are fewer cities, or the last three fractions add
                up to more than 1.
        """
        super().__init__(seed, cities, heldout)
        if outdated + undated + uncertain > 1:
            raise UserError(
                "world.outdated, world.undated and world.uncertain add up to more than 1: lower"
                " them, because a place has only one of these pairs of pages."
            )
        self.site, self.max_links = site, links
        self._address = site
        self._topk, self._hops = topk, hops
        self._shares = EditionShares(outdated, undated, uncertain)

    @cached_property
    def _pages(self) -> list[dict[str, str]]:
        return [*iterate_place_pages(self.gazetteer, self._shares, read_all_cities())]

    def passages(self) -> list[dict[str, str]]:
        return list(self._pages)

    def probes(self) -> list[Task]:
        return []  # the team reads all facts, whatever a model knows

    def training_questions(self, count: int) -> list[Task]:
        return self._select(super().training_questions(MAX_TRAIN_TASKS), count)

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        found: list[Task] = []
        for split, count in splits.items():
            tasks = super().evaluation_questions({split: count * OVERSAMPLING})
            found += map(self._add_level, self._select(tasks, count))
        return found

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        rng = random.Random(f"{dataset}:{self.seed}")
        drawn = (
            question.make_task("train", question.draw_trained_wording(rng))
            for question in draw_demonstrable(self.gazetteer, rng, OVERSAMPLING * DATASET_SIZE)
        )
        fitting = (_drop_knowledge(task) for task in drawn if self._is_short(task))
        tasks = islice(fitting, DATASET_SIZE if count is None else count)
        return [(task, self._make_team(task).run()) for task in tasks]

    def _select(self, tasks: Sequence[Task], count: int) -> list[Task]:
        return [_drop_knowledge(task) for task in tasks if self._is_short(task)][:count]

    def _is_short(self, task: Task) -> bool:
        return task.meta["split"] == "four_hops" or task.meta["hops"] <= self._hops

    def team_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        return self._make_team(task).run()

    def single_agent_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        return make_web_agent_chain(self._make_reader(task))

    @property
    def oracle(self) -> None:
        """None, because no agent can know which page is right."""
        return

    def _make_team(self, task: Task) -> WebTeam:
        return WebTeam(self._make_reader(task))

    def _make_reader(self, task: Task) -> SiteReader:
        observe = partial(self.site_index.make_observation, self._address, self._topk)
        return SiteReader(observe, self._address, Beliefs(task.meta["asks"]))

    @cached_property
    def site_index(self) -> SiteIndex:
        """The pages of the site, and the search in them."""
        folder = Path(mkdtemp(prefix="fieldcraft-"))
        weakref.finalize(self, rmtree, folder)
        return build_site_index(self, folder)

    def _add_level(self, task: Task) -> Task:
        team = self._make_team(task)
        team.run()
        return replace(task, meta={**task.meta, LEVEL_KEY: max(team.troubles)})


def _drop_knowledge(task: Task) -> Task:
    """Return the task without what a model knows, which is not measured here."""
    dropped = ("known", "known_facts", "calls_optimal", "recall")
    return replace(task, meta={k: v for k, v in task.meta.items() if k not in dropped})
