"""World class of the schoolbook, which a recipe can name."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from copy import copy
from typing import ClassVar

from fieldcraft.config.numbers import UnitFraction, WorldCount
from fieldcraft.data.world import Demonstration, World
from fieldcraft.extensions.worlds.schoolbook.oracle import (
    CAREFUL_SHARE,
    HURRIED_SHARE,
    SchoolbookOracle,
    Solver,
    make_careless_steps,
)
from fieldcraft.extensions.worlds.schoolbook.probes import (
    MAX_PROBE_TOKENS,
    make_ability,
    make_probes,
)
from fieldcraft.extensions.worlds.schoolbook.problems import (
    Ability,
    Problem,
    draw_trained_wording,
)
from fieldcraft.extensions.worlds.schoolbook.records import RECORDS_MODULE, Records
from fieldcraft.extensions.worlds.schoolbook.sampling import (
    SPLITS,
    ProblemSampler,
    draw_demonstrable,
    draw_evaluation_tasks,
    draw_train_tasks,
    list_head_groups,
    make_record_problems,
)
from fieldcraft.types import DemoStep, Task

DATASET_SIZE = 4000  # examples per dataset, unless a recipe requests fewer


class SchoolbookWorld(World):
    """World of word problems; a run measures which of them its model solves in its head."""

    splits: ClassVar[Mapping[str, str]] = SPLITS
    datasets: ClassVar[Sequence[str]] = ("demonstrations", "wasteful", "careless")
    max_probe_tokens = MAX_PROBE_TOKENS

    def __init__(
        self,
        seed: int,
        records: WorldCount = 900,
        heldout_records: WorldCount = 300,
        known: UnitFraction = 0.0,
    ) -> None:
        """Make the records.

        Args:
            seed: seed of the run; it determines the records and the questions.
            records: number of problems with an entry in the records, in training.
            heldout_records: number of such problems in evaluations, about other people.
            known: fraction of the demonstrations and of the questions of reinforcement learning
                that the model can solve in its head, in addition to those drawn by chance.

        Raises:
            UserError: there are not enough names.
        """
        super().__init__(seed)
        self.known = known
        self.ability = Ability()
        self.recorded, self.heldout_recorded = (
            make_record_problems(random.Random(f"records:{seed}:{heldout}"), count, heldout)
            for count, heldout in ((records, False), (heldout_records, True))
        )

    def passages(self) -> list[dict[str, str]]:
        """Return no passages, because this world has no search."""
        return []

    def files(self) -> Mapping[str, str]:
        problems = (*self.recorded, *self.heldout_recorded)
        entries = {each.entry.holder: each.entry for each in problems if each.entry}
        return {RECORDS_MODULE: Records(entries).render_module()}

    def probes(self) -> list[Task]:
        return make_probes()

    def with_probe_rates(self, rates: Mapping[str, float]) -> SchoolbookWorld:
        """Return the same problems for a model with these rates of correct probes."""
        other = copy(self)
        other.ability = make_ability(rates)
        return other

    def small_copy(self) -> SchoolbookWorld:
        """Return the world for a model that can solve every third group in its head, so that all
        splits have example questions before a model is measured."""
        if self.ability.rates:
            return self
        other = copy(self)
        groups = list_head_groups()
        other.ability = Ability({each.group: float(n % 3 == 0) for n, each in enumerate(groups)})
        return other

    def training_questions(self, count: int) -> list[Task]:
        return draw_train_tasks(self._train_sampler, self.seed, count)

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        sampler = ProblemSampler(self.ability, self.heldout_recorded, heldout=True)
        found: list[Task] = []
        for split in SPLITS:
            count = splits.get(split, 0)
            if split == "train":
                found += self.training_questions(count)
            else:
                found += draw_evaluation_tasks(sampler, self.seed, split, count)
        return found

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        """Return demonstrations with the fewest programs for the model. Those of `wasteful` run a
        program for everything in half of the questions; in those of `careless`, a wasteful teacher
        is also in a hurry for half of the questions, and often wrong."""
        rng = random.Random(f"{dataset}:{self.seed}")
        size = DATASET_SIZE if count is None else count
        return [
            (
                self.ability.make_task(each, "train", draw_trained_wording(rng)),
                self._make_steps(dataset, each, rng),
            )
            for each in draw_demonstrable(self._train_sampler, rng, size)
        ]

    def _make_steps(self, dataset: str, problem: Problem, rng: random.Random) -> list[DemoStep]:
        uses_head = self.ability.is_known(problem)
        if dataset != "demonstrations":
            uses_head &= rng.random() >= CAREFUL_SHARE
        if dataset == "careless" and rng.random() < HURRIED_SHARE:
            return make_careless_steps(problem, uses_head, rng)
        return Solver(problem, uses_head).list_steps()

    @property
    def _train_sampler(self) -> ProblemSampler:
        return ProblemSampler(self.ability, self.recorded, heldout=False, known=self.known)

    @property
    def oracle(self) -> SchoolbookOracle:
        problems = (*self.recorded, *self.heldout_recorded)
        return SchoolbookOracle(self.ability, {each.name: each for each in problems})
