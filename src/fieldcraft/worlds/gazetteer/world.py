"""Gazetteer as a world that a recipe can name."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cache
from typing import Annotated

from pydantic import Field, PositiveInt

from fieldcraft.config.sections import Share
from fieldcraft.dialects.base import encode_written
from fieldcraft.dialects.demonstrations import encode_demonstration, encode_pair
from fieldcraft.types import (
    Author,
    Dialect,
    Segment,
    Step,
    Task,
    Trajectory,
    UserError,
)
from fieldcraft.worlds.base import Schemas, TrajectoryPair, Verdicts, World
from fieldcraft.worlds.gazetteer.corpus import Corpus, harder, plain
from fieldcraft.worlds.gazetteer.draws import (
    SPLITS,
    demonstrated,
    evaluation_tasks,
    training_tasks,
)
from fieldcraft.worlds.gazetteer.facts import Gazetteer, choose
from fieldcraft.worlds.gazetteer.fidelity import judge_by_gazetteer
from fieldcraft.worlds.gazetteer.geonames import read_places
from fieldcraft.worlds.gazetteer.oracle import (
    GazetteerOracle,
    decisions,
    is_needed,
    steps_to_answer,
    wasteful,
)
from fieldcraft.worlds.gazetteer.probes import fact_of, probes

Part = Annotated[float, Field(ge=0, le=1)]
SIZE = 4000  # examples of a data set, unless a recipe asks for fewer
ACTING_SHARE = 0.5  # at least, of the pairs
TAUGHT_SHARE = 0.5  # of the facts, which the data set `facts` teaches


class GazetteerWorld(World):
    """The real world's cities, regions and countries; a run measures what its model knows."""

    splits = SPLITS
    datasets = ("demonstrations", "wasteful", "facts")
    toolless = ("facts",)
    pair_sets = ("pairs",)

    def __init__(
        self,
        seed: int,
        cities: PositiveInt = 500,
        heldout: Share = 0.35,
        topk: PositiveInt = 1,
        known: Part = 0.0,
        outdated: Part = 0.0,
        duplicates: Part = 0.0,
        distractors: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        """Choose the places.

        Args:
            seed: of the run; it says which countries are held out, and what is asked.
            cities: how many cities, the largest of each country first. Capitals and the largest
                cities of regions are added.
            heldout: share of the countries that no training names, with all their places.
            topk: how many articles demonstrations find, as many as `search.topk` shows.
            known: share of the demonstrations and of the questions of reinforcement learning that
                is drawn from those of which the model knows all facts, beside those among the rest.
            outdated: share of the places of which there is an older article, too, that contradicts
                the newer one.
            duplicates: share of the places with a second article in other words.
            distractors: how many articles there are about cities that no question names.

        Raises:
            UserError: a package is missing, or there are fewer cities.
        """
        super().__init__(seed)
        self.known = known
        self.world: Gazetteer = choose(_places(), cities, heldout, seed)
        places, others = [*self.world.places.values()], self.world.others[:distractors]
        if len(others) < distractors:
            raise UserError(
                f"world.distractors={distractors}: there are only {len(others)} other cities."
            )
        plainly = not (outdated or duplicates or distractors)
        texts = plain(places) if plainly else harder(places, others, outdated, duplicates)
        self.corpus = Corpus([*texts], topk)

    def passages(self) -> list[dict[str, str]]:
        return list(self.corpus.passages)

    def probes(self) -> list[Task]:
        return probes(self.world)

    def knowing(self, rates: Mapping[str, float]) -> GazetteerWorld:
        """Return the same places for a model whose probes were right at these rates."""
        other = copy(self)
        other.world = self.world.with_rates({fact_of(probe): r for probe, r in rates.items()})
        return other

    def training_questions(self, count: int) -> list[Task]:
        return training_tasks(self.world, self.seed, count, self.known)

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        found: list[Task] = []
        for split in SPLITS:
            count = splits.get(split, 0)
            if split == "train":
                found += self.training_questions(count)
            else:
                found += evaluation_tasks(self.world, self.seed, split, count)
        return found

    def demonstrations(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[Trajectory]:
        """Return the best way for the model, as far as what it knows was measured; `wasteful` ones
        look everything up for half of the questions. `facts` are probes with their answers, of half
        of all facts, those of held-out places too: they change what a model knows."""
        if data == "facts":
            return self._taught(SIZE if count is None else count, dialect)
        shown = self.shown(data, count, dialect, tools)
        return [encode_demonstration(*each, dialect, tools) for each in shown]

    def shown(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[tuple[Task, list[Step]]]:
        if data in self.toolless:
            return super().shown(data, count, dialect, tools)
        rng = random.Random(f"{data}:{self.seed}")
        found = []
        for question in demonstrated(self.world, rng, SIZE if count is None else count, self.known):
            task = question.task("train", question.trained_wording(rng))
            if data == "wasteful":
                found.append((task, wasteful(self.world, self.corpus, question, rng)))
            else:
                found.append((task, steps_to_answer(self.world, self.corpus, question, is_needed)))
        return found

    def pairs(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[TrajectoryPair]:
        rng = random.Random(f"pairs:{self.seed}")
        count = SIZE if count is None else count
        return [
            encode_pair(task, before, ways, dialect, tools)
            for task, before, ways in self._decided(rng, count)
        ]

    def _decided(
        self, rng: random.Random, count: int
    ) -> Iterator[tuple[Task, Sequence[Step], tuple[Sequence[Step], Sequence[Step]]]]:
        """Yield the decisions of demonstrations; at least half of them choose to act, where facts
        are unknown."""
        made = acting = 0
        for question in demonstrated(self.world, rng, 20 * count, self.known):
            task = question.task("train", question.trained_wording(rng))
            for decision in decisions(self.world, self.corpus, question, rng):
                if made == count:
                    return
                if decision.acts or made - acting < (1 - ACTING_SHARE) * count:
                    made, acting = made + 1, acting + decision.acts
                    yield task, decision.before, (decision.chosen, decision.rejected)

    def _taught(self, count: int, dialect: Dialect) -> list[Trajectory]:
        asked = [task for task in self.probes() if _is_taught(task.id)]
        rng = random.Random(f"facts:{self.seed}")
        return [_answered(rng.choice(asked), dialect) for _ in range(count)]

    def reduced(self) -> GazetteerWorld:
        """Return the world as if a model knew every second fact, so that there are questions of all
        splits to look at before it is measured."""
        if self.world.rates:
            return self
        asked = self.probes()
        return self.knowing({task.id: float(n % 2) for n, task in enumerate(asked)})

    @property
    def oracle(self) -> GazetteerOracle:
        return GazetteerOracle(self.world, self.corpus)

    def judge(self, trajectory: Trajectory) -> Verdicts:
        return judge_by_gazetteer(self.world, trajectory)


def _is_taught(probe: str) -> bool:
    return random.Random(f"taught:{probe}").random() < TAUGHT_SHARE


def _answered(probe: Task, dialect: Dialect) -> Trajectory:
    """Return a probe with its answer, which is trained."""
    prompt = encode_written(dialect.tokenizer, probe.question)
    answer = f" {probe.answers[0]}\n\n"
    written = encode_written(dialect.tokenizer, answer)
    return Trajectory(
        probe,
        [
            Segment(Author.PROMPT, prompt, probe.question),
            Segment(Author.POLICY, written, answer),
        ],
    )


_places = cache(read_places)
