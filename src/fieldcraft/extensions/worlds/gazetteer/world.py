"""World class of the gazetteer, which a recipe can name."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cache
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from fieldcraft.config.numbers import OpenFraction, UnitFraction
from fieldcraft.data.world import Demonstration, SimulationVerdicts, World
from fieldcraft.dialects.base import encode_policy_text
from fieldcraft.dialects.encoding import DemonstrationEncoder, TrajectoryPair
from fieldcraft.extensions.worlds.gazetteer.articles import (
    GazetteerCorpus,
    iterate_harder_passages,
    iterate_passages,
)
from fieldcraft.extensions.worlds.gazetteer.facts import (
    Gazetteer,
    make_probes,
    parse_probe_id,
    select_places,
)
from fieldcraft.extensions.worlds.gazetteer.fidelity import judge_gazetteer_simulations
from fieldcraft.extensions.worlds.gazetteer.geonames import read_places
from fieldcraft.extensions.worlds.gazetteer.oracle import (
    GazetteerOracle,
    iterate_decisions,
    make_steps,
    make_wasteful_steps,
    needs_search,
)
from fieldcraft.extensions.worlds.gazetteer.question_sampling import (
    SPLITS,
    draw_demonstrable,
    draw_evaluation_tasks,
    draw_train_tasks,
)
from fieldcraft.types import (
    Author,
    DemoStep,
    Dialect,
    Segment,
    Task,
    Trajectory,
    UserError,
)

DATASET_SIZE = 4000  # examples per dataset, unless a recipe requests fewer
ACTING_SHARE = 0.5  # minimum fraction of the pairs
TAUGHT_SHARE = 0.5  # fraction of the facts that the dataset `facts` teaches


class GazetteerWorld(World):
    """World of real cities, regions and countries; a run measures what its model knows."""

    splits: ClassVar[Mapping[str, str]] = SPLITS
    datasets: ClassVar[Sequence[str]] = ("demonstrations", "wasteful", "facts")
    toolless_datasets: ClassVar[Sequence[str]] = ("facts",)
    pair_sets: ClassVar[Sequence[str]] = ("pairs",)

    def __init__(
        self,
        seed: int,
        cities: PositiveInt = 500,
        heldout: OpenFraction = 0.35,
        topk: PositiveInt = 1,
        known: UnitFraction = 0.0,
        outdated: UnitFraction = 0.0,
        duplicates: UnitFraction = 0.0,
        distractors: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        """Select the places.

        Args:
            seed: seed of the run; it determines the held-out countries and the questions.
            cities: number of cities, the largest of each country first. Capitals and the largest
                cities of regions are added.
            heldout: fraction of the countries that do not occur in training, with all their places.
            topk: number of articles per search in demonstrations, equal to `search.top_k`.
            known: fraction of demonstrations and of reinforcement learning questions drawn from
                those whose facts the model knows, in addition to those that occur by chance.
            outdated: fraction of the places with an additional older article that contradicts the
                newer one.
            duplicates: fraction of the places with a second article in other words.
            distractors: number of articles about cities that do not occur in questions.

        Raises:
            UserError: a package is missing, there are fewer cities, or all countries or none would
                be held out.
        """
        super().__init__(seed)
        self.known = known
        self.gazetteer: Gazetteer = select_places(_places(), cities, heldout, seed)
        places, others = (
            [*self.gazetteer.places.values()],
            self.gazetteer.other_cities[:distractors],
        )
        if len(others) < distractors:
            raise UserError(
                f"world.distractors={distractors}: only {len(others)} other cities are available."
            )
        is_plain = not (outdated or duplicates or distractors)
        texts = (
            iterate_passages(places)
            if is_plain
            else iterate_harder_passages(places, others, outdated, duplicates)
        )
        self.corpus = GazetteerCorpus([*texts], topk)

    def passages(self) -> list[dict[str, str]]:
        return list(self.corpus.passages)

    def probes(self) -> list[Task]:
        return make_probes(self.gazetteer)

    def with_probe_rates(self, rates: Mapping[str, float]) -> GazetteerWorld:
        """Return the same places for a model with these rates of correct probes."""
        other = copy(self)
        other.gazetteer = self.gazetteer.with_rates(
            {parse_probe_id(probe): r for probe, r in rates.items()}
        )
        return other

    def training_questions(self, count: int) -> list[Task]:
        return draw_train_tasks(self.gazetteer, self.seed, count, self.known)

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        found: list[Task] = []
        for split in SPLITS:
            count = splits.get(split, 0)
            if split == "train":
                found += self.training_questions(count)
            else:
                found += draw_evaluation_tasks(self.gazetteer, self.seed, split, count)
        return found

    def encoded(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[Trajectory]:
        """Return optimal demonstrations for the model, given the measured facts. Those of
        `wasteful` look everything up for half of the questions. `facts` has probes with their
        answers, for half of all facts, including held-out places; it changes what a model knows."""
        if dataset == "facts":
            return self._make_taught_texts(
                DATASET_SIZE if count is None else count, encoder.dialect
            )
        return super().encoded(dataset, count, encoder)

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        if dataset in self.toolless_datasets:
            return super().demonstrations(dataset, count)
        rng = random.Random(f"{dataset}:{self.seed}")
        found = []
        for question in draw_demonstrable(
            self.gazetteer, rng, DATASET_SIZE if count is None else count, self.known
        ):
            task = question.make_task("train", question.draw_trained_wording(rng))
            if dataset == "wasteful":
                found.append(
                    (task, make_wasteful_steps(self.gazetteer, self.corpus, question, rng))
                )
            else:
                found.append(
                    (task, make_steps(self.gazetteer, self.corpus, question, needs_search))
                )
        return found

    def pairs(
        self, dataset: str, count: int | None, encoder: DemonstrationEncoder
    ) -> list[TrajectoryPair]:
        rng = random.Random(f"pairs:{self.seed}")
        count = DATASET_SIZE if count is None else count
        return [
            encoder.encode_pair(task, before, sides)
            for task, before, sides in self._iterate_decisions(rng, count)
        ]

    def _iterate_decisions(
        self, rng: random.Random, count: int
    ) -> Iterator[tuple[Task, Sequence[DemoStep], tuple[Sequence[DemoStep], Sequence[DemoStep]]]]:
        """Yield the decisions of demonstrations, at least half of which choose to act, if facts are
        unknown."""
        num_pairs = num_acting = 0
        for question in draw_demonstrable(self.gazetteer, rng, 20 * count, self.known):
            task = question.make_task("train", question.draw_trained_wording(rng))
            for decision in iterate_decisions(self.gazetteer, self.corpus, question, rng):
                if num_pairs == count:
                    return
                if decision.chooses_tool or num_pairs - num_acting < (1 - ACTING_SHARE) * count:
                    num_pairs, num_acting = num_pairs + 1, num_acting + decision.chooses_tool
                    yield task, decision.before, (decision.chosen, decision.rejected)

    def _make_taught_texts(self, count: int, dialect: Dialect) -> list[Trajectory]:
        taught_probes = [task for task in self.probes() if _is_taught(task.id)]
        rng = random.Random(f"facts:{self.seed}")
        return [_make_answered_probe(rng.choice(taught_probes), dialect) for _ in range(count)]

    def small_copy(self) -> GazetteerWorld:
        """Return the world for a model that knows every second fact, so that all splits have
        example questions before a model is measured."""
        if self.gazetteer.rates:
            return self
        all_probes = self.probes()
        return self.with_probe_rates({task.id: float(n % 2) for n, task in enumerate(all_probes)})

    @property
    def oracle(self) -> GazetteerOracle | None:
        return GazetteerOracle(self.gazetteer, self.corpus)

    def judge_simulations(self, trajectory: Trajectory) -> SimulationVerdicts:
        return judge_gazetteer_simulations(self.gazetteer, trajectory)


def _is_taught(probe: str) -> bool:
    return random.Random(f"taught:{probe}").random() < TAUGHT_SHARE


def _make_answered_probe(probe: Task, dialect: Dialect) -> Trajectory:
    """Return a probe with its answer, which is trained."""
    prompt = encode_policy_text(dialect.tokenizer, probe.question)
    answer = f" {probe.answers[0]}\n\n"
    answer_ids = encode_policy_text(dialect.tokenizer, answer)
    return Trajectory(
        probe,
        [
            Segment(Author.PROMPT, prompt, probe.question),
            Segment(Author.POLICY, answer_ids, answer),
        ],
    )


_places = cache(read_places)
