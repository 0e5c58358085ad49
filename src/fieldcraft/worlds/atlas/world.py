"""Atlas as a world that a recipe can name."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Annotated

from pydantic import AfterValidator, Field, PositiveInt

from fieldcraft.config.sections import Share
from fieldcraft.types import Dialect, Step, Task, Trajectory, UserError
from fieldcraft.worlds.atlas.curriculum import READING_SHARE, Curriculum, tokenizer_texts
from fieldcraft.worlds.atlas.facts import deal
from fieldcraft.worlds.atlas.fidelity import judge_by_world
from fieldcraft.worlds.atlas.lone import lone_demonstration
from fieldcraft.worlds.atlas.oracle import AtlasOracle, path_of
from fieldcraft.worlds.atlas.questions import SPLITS, evaluation_tasks, train_tasks
from fieldcraft.worlds.atlas.synthesis import (
    DEPTH,
    JOINS,
    deeper,
    joined,
    told_answer,
    told_facts,
)
from fieldcraft.worlds.atlas.team import MISTAKES, team_demonstration
from fieldcraft.worlds.atlas.ways import with_ways
from fieldcraft.worlds.base import Schemas, TrajectoryPair, Verdicts, World
from fieldcraft.worlds.naming import SYLLABLES
from fieldcraft.worlds.pages import site_address

FEW_VARIANTS = 20  # of which examples are looked at before a run


class AtlasWorld(World):
    """The synthetic encyclopedia; `facts` says what is in it."""

    splits = SPLITS
    datasets = ("base", "demonstrations", "wasteful", "team")
    toolless = ("base",)
    pair_sets = ("pairs",)
    synthesised = (DEPTH, *JOINS)

    def __init__(
        self,
        seed: int,
        people: PositiveInt = 200,
        taught: Share = 0.4,
        heldout: Share = 0.5,
        variants: PositiveInt = 400,
        reserved_chains: Annotated[int, Field(ge=0, le=9)] = 0,
        mistakes: Annotated[float, Field(ge=0, le=1)] = MISTAKES,
        reading_syllables: Annotated[int, Field(ge=4, le=len(SYLLABLES))] | None = None,
        site: Annotated[str, AfterValidator(site_address)] | None = None,
        article_readings: Annotated[int, Field(ge=0)] = 0,
        article_share: Annotated[float, Field(gt=0, le=1)] = 1.0,
        reading_share: Share = READING_SHARE,
        snippet_parts: PositiveInt | None = None,
    ) -> None:
        """Deal the world.

        Args:
            seed: of the run.
            people: number of people; companies, cities and countries follow.
            taught: share of the entities whose facts the base model learns.
            heldout: share of the others that no training ever shows.
            variants: re-deals of the untaught facts that demonstrations are drawn from.
            reserved_chains: pairs of relations kept out of training.
            mistakes: share of the team's chains with a mistake, for each of three kinds.
            reading_syllables: how many different syllables the names have that a base model learns
                to read by, None for all. The fewer, the better it copies similar names.
            site: the address of a web site of the articles, such as http://atlas. Agents then
                search and read that site with web_search and crawl_page, in place of an index.
            article_readings: how often a base model reads each article of what training asks about,
                so that it can simulate a search there; those of held-out entities never.
            article_share: share of the training region's entities whose articles it reads. A
                question has the metadata `read: true` if it is only about these and about taught
                ones.
            reading_share: share of the base model's other texts in which it states what it has just
                read about strangers.
            snippet_parts: how many parts of an article, between commas, a search of that site
                shows; the first one tells one fact. None: a quarter of it, which tells none.

        Raises:
            UserError: the world would have no entities of a kind, or none to ask about; or
                snippet_parts has no site.
        """
        super().__init__(seed)
        if snippet_parts is not None and site is None:
            raise UserError("world.snippet_parts is of a web site: set world.site, or remove it.")
        self.variants = variants
        self.mistakes = mistakes
        self.reading_syllables = reading_syllables
        self.site = site
        self.article_readings = article_readings
        self.reading_share = reading_share
        self.snippet_parts = snippet_parts
        dealt = deal(people, taught, heldout, seed, reserved_chains, site, snippet_parts)
        self.facts = dealt.with_articles_read(article_share) if article_readings else dealt

    def passages(self) -> list[dict[str, str]]:
        return self.facts.passages()

    def training_questions(self, count: int) -> list[Task]:
        return self._with_ways(train_tasks(self.facts, self.seed, count))

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        return self._with_ways(evaluation_tasks(self.facts, self.seed, splits))

    def _with_ways(self, tasks: list[Task]) -> list[Task]:
        """Return the tasks with the ways to answer them on a site, where an article can be read in
        two ways."""
        return tasks if self.site is None else with_ways(self.facts, tasks)

    def demonstrations(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[Trajectory]:
        curriculum = self._curriculum(dialect, tools)
        make = {
            "base": curriculum.base,
            "demonstrations": curriculum.demonstrations,
            "wasteful": curriculum.wasteful,
            "team": curriculum.team,
        }[data]
        return make(curriculum.size_with_articles(data, count))

    def shown(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[tuple[Task, list[Step]]]:
        if data in self.toolless:
            return super().shown(data, count, dialect, tools)
        curriculum = self._curriculum(dialect, tools)
        return curriculum.shown(data, curriculum.size(data, count))

    def pairs(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[TrajectoryPair]:
        curriculum = self._curriculum(dialect, tools)
        return curriculum.pairs(curriculum.size(data, count))

    def _curriculum(self, dialect: Dialect, tools: Schemas) -> Curriculum:
        return Curriculum(
            self.facts,
            dialect,
            tools,
            self.variants,
            self.seed,
            self.mistakes,
            self.reading_syllables,
            self.article_readings,
            self.reading_share,
        )

    @property
    def oracle(self) -> AtlasOracle:
        return AtlasOracle(self.facts)

    def team_chain(self, task: Task, rng: random.Random) -> list[Step]:
        return team_demonstration(self.facts, path_of(task), rng, self.mistakes)

    def lone_chain(self, task: Task, rng: random.Random) -> list[Step]:
        return lone_demonstration(self.facts, path_of(task), rng, self.mistakes)

    def synthesise(self, kind: str, task: Task, rng: random.Random) -> Task | None:
        if kind == DEPTH:
            return deeper(self.facts, task, rng)
        return joined(self.facts, kind, rng)

    def told_answer(self, task: Task) -> str | None:
        return told_answer(self._told, task)

    @cached_property
    def _told(self) -> dict[tuple[str, str], str]:
        return told_facts(self.facts.passages())

    def judge(self, trajectory: Trajectory) -> Verdicts:
        return judge_by_world(self.facts, trajectory)

    def tokenizer_texts(self, tags: Sequence[str]) -> Iterable[str]:
        return tokenizer_texts(self.facts, tags)

    @property
    def syllables(self) -> Sequence[str]:
        return SYLLABLES

    def reduced(self) -> AtlasWorld:
        few = copy(self)
        few.variants = min(self.variants, FEW_VARIANTS)
        return few
