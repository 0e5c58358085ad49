"""World class of Atlas, which a recipe can name."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Annotated

from pydantic import AfterValidator, Field, PositiveInt

from fieldcraft.config.numbers import OpenFraction, PositiveFraction, UnitFraction, WorldCount
from fieldcraft.data.world import Demonstration, SimulationVerdicts, World
from fieldcraft.dialects.encoding import DemonstrationEncoder, TrajectoryPair
from fieldcraft.extensions.worlds.atlas.curriculum import (
    READING_SHARE,
    AtlasCurriculum,
    AtlasDemonstrations,
    iterate_tokenizer_texts,
)
from fieldcraft.extensions.worlds.atlas.fidelity import judge_atlas_simulations
from fieldcraft.extensions.worlds.atlas.generation import generate_atlas
from fieldcraft.extensions.worlds.atlas.oracle import AtlasOracle, get_path
from fieldcraft.extensions.worlds.atlas.questions import (
    SPLITS,
    draw_evaluation_tasks,
    draw_train_tasks,
)
from fieldcraft.extensions.worlds.atlas.reading import add_tool_mixes
from fieldcraft.extensions.worlds.atlas.synthesis import (
    DEPTH,
    JOIN_KINDS,
    collect_facts,
    deepen_question,
    derive_answer,
    join_questions,
)
from fieldcraft.extensions.worlds.atlas.team import (
    MISTAKE_SHARE,
    make_single_agent_demonstration,
    make_team_demonstration,
)
from fieldcraft.extensions.worlds.names import SYLLABLES
from fieldcraft.extensions.worlds.pages import validate_site_address
from fieldcraft.types import DemoStep, Task, Trajectory, UserError

MAX_ARTICLE_READINGS = 10_000
MAX_CHECK_VARIANTS = 20  # number of variants in the examples shown before a run


class AtlasWorld(World):
    """World of the synthetic encyclopedia; see `facts` for its contents."""

    splits = SPLITS
    datasets = ("base", "demonstrations", "wasteful", "team")
    toolless_datasets = ("base",)
    pair_sets = ("pairs",)
    synthesis_kinds = (DEPTH, *JOIN_KINDS)

    def __init__(
        self,
        seed: int,
        people: WorldCount = 200,
        taught: OpenFraction = 0.4,
        heldout: OpenFraction = 0.5,
        variants: WorldCount = 400,
        reserved_chains: Annotated[int, Field(ge=0, le=9)] = 0,
        mistakes: UnitFraction = MISTAKE_SHARE,
        reading_syllables: Annotated[int, Field(ge=4, le=len(SYLLABLES))] | None = None,
        site: Annotated[str, AfterValidator(validate_site_address)] | None = None,
        article_readings: Annotated[int, Field(ge=0, le=MAX_ARTICLE_READINGS)] = 0,
        article_share: PositiveFraction = 1.0,
        reading_share: OpenFraction = READING_SHARE,
        snippet_parts: PositiveInt | None = None,
    ) -> None:
        """Generate the world.

        Args:
            seed: seed of the run.
            people: number of people; companies, cities and countries follow.
            taught: fraction of the entities whose facts the base model learns.
            heldout: fraction of the others that never occur in training.
            variants: number of worlds with new untaught facts for the demonstrations.
            reserved_chains: number of pairs of relations kept out of training.
            mistakes: fraction of the team's chains with an error, for each of three kinds.
            reading_syllables: number of distinct syllables in the names from which a base model
                learns to read, None for all. With fewer, it copies similar names better.
            site: address of a web site of the articles, such as http://atlas. Agents then search
                and read that site with web_search and crawl_page, instead of an index.
            article_readings: number of times that a base model reads each article used in training,
                so that it can simulate a search; articles of held-out entities are never read.
            article_share: fraction of the training region's entities whose articles it reads. A
                question has the metadata `read: true` if it is only about these and about taught
                ones.
            reading_share: fraction of the base model's other texts in which it states what it has
                just read about unfamiliar entities.
            snippet_parts: number of comma-separated parts of an article in search results of that
                site; the first part states one fact. None: a quarter of the article, which states
                none.
        Raises:
            UserError: the world would have no entities of a kind, or none to ask about; or
                snippet_parts is set without a site.
        """
        super().__init__(seed)
        if snippet_parts is not None and site is None:
            raise UserError(
                "world.snippet_parts requires world.site: set it, or remove snippet_parts."
            )
        self.variants = variants
        self.mistakes = mistakes
        self.reading_syllables = reading_syllables
        self.site = site
        self.article_readings = article_readings
        self.reading_share = reading_share
        self.snippet_parts = snippet_parts
        atlas = generate_atlas(people, taught, heldout, seed, reserved_chains, site, snippet_parts)
        self.atlas = atlas.with_articles_read(article_share) if article_readings else atlas

    def passages(self) -> list[dict[str, str]]:
        return self.atlas.make_passages()

    def training_questions(self, count: int) -> list[Task]:
        return self._add_tool_mixes(draw_train_tasks(self.atlas, self.seed, count))

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        return self._add_tool_mixes(draw_evaluation_tasks(self.atlas, self.seed, splits))

    def _add_tool_mixes(self, tasks: list[Task]) -> list[Task]:
        """Return the tasks with the tool mixes that answer them, if there is a site, where an
        article can be read in two ways."""
        return tasks if self.site is None else add_tool_mixes(self.atlas, tasks)

    def encoded(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[Trajectory]:
        curriculum = self._curriculum(encoder)
        make = {
            "base": curriculum.make_base_texts,
            "demonstrations": curriculum.make_demonstrations,
            "wasteful": curriculum.make_wasteful,
            "team": curriculum.make_team,
        }[dataset]
        return make(curriculum.get_size_with_articles(dataset, count))

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        if dataset in self.toolless_datasets:
            return super().demonstrations(dataset, count)
        source = AtlasDemonstrations(self.atlas, self.variants, self.seed, self.mistakes)
        return source.demonstrations(dataset, source.get_size(dataset, count))

    def pairs(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[TrajectoryPair]:
        curriculum = self._curriculum(encoder)
        return curriculum.make_pairs(curriculum.get_size(dataset, count))

    def _curriculum(self, encoder: DemonstrationEncoder) -> AtlasCurriculum:
        return AtlasCurriculum(
            self.atlas,
            self.variants,
            self.seed,
            self.mistakes,
            encoder=encoder,
            reading_syllables=self.reading_syllables,
            article_readings=self.article_readings,
            reading_share=self.reading_share,
        )

    @property
    def oracle(self) -> AtlasOracle:
        return AtlasOracle(self.atlas)

    def team_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        return make_team_demonstration(self.atlas, get_path(task), rng, self.mistakes)

    def single_agent_demonstration(self, task: Task, rng: random.Random) -> list[DemoStep]:
        return make_single_agent_demonstration(self.atlas, get_path(task), rng, self.mistakes)

    def synthesise(self, kind: str, task: Task, rng: random.Random) -> Task | None:
        if kind == DEPTH:
            return deepen_question(self.atlas, task, rng)
        return join_questions(self.atlas, kind, rng)

    def answer_from_passages(self, task: Task) -> str | None:
        return derive_answer(self._stated_facts, task)

    @cached_property
    def _stated_facts(self) -> dict[tuple[str, str], str]:
        return collect_facts(self.atlas.make_passages())

    def judge_simulations(self, trajectory: Trajectory) -> SimulationVerdicts:
        return judge_atlas_simulations(self.atlas, trajectory)

    def tokenizer_texts(self, tags: Sequence[str]) -> Iterable[str]:
        return iterate_tokenizer_texts(self.atlas, tags)

    @property
    def syllables(self) -> Sequence[str]:
        return SYLLABLES

    def small_copy(self) -> AtlasWorld:
        smaller = copy(self)
        smaller.variants = min(self.variants, MAX_CHECK_VARIANTS)
        return smaller
