"""Abacus as a world that a recipe can name."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from pydantic import PositiveInt

from fieldcraft.types import Action, Dialect, Observation, Task, Thought, Trajectory
from fieldcraft.worlds.abacus.curriculum import SIZES, Curriculum
from fieldcraft.worlds.abacus.notes import MODULE
from fieldcraft.worlds.abacus.oracle import TOO_LARGE, UNKNOWN, AbacusOracle
from fieldcraft.worlds.abacus.questions import (
    SPLITS,
    evaluation_tasks,
    new_abacus,
    train_tasks,
)
from fieldcraft.worlds.base import Schemas, TrajectoryPair, World
from fieldcraft.worlds.naming import SYLLABLES

GIVEN_SHARE = 0.3  # of the people with a question whose note was given away
SAMPLE = 400  # questions whose texts a tokenizer is made from


class AbacusWorld(World):
    """Sums for the head and for Python; `instructions` and `notes` say what is in it."""

    splits = SPLITS
    datasets = ("base", "demonstrations", "wasteful", "careless")
    toolless = ("base",)
    pair_sets = ("pairs",)

    def __init__(
        self, seed: int, notes: PositiveInt = 1500, heldout_notes: PositiveInt = 600
    ) -> None:
        """Write the notes.

        Args:
            seed: of the run.
            notes: people with a note whom training asks about.
            heldout_notes: people with a note whom evaluations ask about.
        """
        super().__init__(seed)
        rng, used = random.Random(f"notes:{seed}"), set[str]()
        self.training, self.testing = (
            new_abacus(rng, count, round(count * GIVEN_SHARE), used, heldout=heldout)
            for count, heldout in ((notes, False), (heldout_notes, True))
        )
        self.notebook = self.training.notebook | self.testing.notebook

    def passages(self) -> list[dict[str, str]]:
        """None: nothing is searched here."""
        return []

    def files(self) -> Mapping[str, str]:
        return {MODULE: self.notebook.source()}

    def training_questions(self, count: int) -> list[Task]:
        return train_tasks(self.training, self.seed, count)

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        return evaluation_tasks(self.testing, self.seed, splits)

    def demonstrations(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[Trajectory]:
        curriculum = self._curriculum(dialect, tools)
        make = {
            "base": curriculum.base,
            "demonstrations": curriculum.demonstrations,
            "wasteful": curriculum.wasteful,
            "careless": curriculum.careless,
        }[data]
        return make(_size(data, count))

    def pairs(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[TrajectoryPair]:
        return self._curriculum(dialect, tools).pairs(_size(data, count))

    def _curriculum(self, dialect: Dialect, tools: Schemas) -> Curriculum:
        reserved = frozenset(chain(*self.testing.names.values()))
        return Curriculum(dialect, tools, reserved, self.seed)

    @property
    def oracle(self) -> AbacusOracle:
        return AbacusOracle(self.notebook)

    def tokenizer_texts(self, tags: Sequence[str]) -> Iterable[str]:
        """All texts that a model of this world reads and writes, without names and numbers."""
        parts = re.compile(r"\d+|[A-Z]\w* [A-Z]\w*(?=[.\"])")
        texts = []
        for task in train_tasks(self.training, self.seed, SAMPLE):
            texts.append(f"{task.question}\n\n")
            for step in self.oracle.demonstration(task):
                match step:
                    case Thought(text) | Observation(text):
                        texts.append(f" {text}\n")
                    case Action(_, {"code": str(code)}):
                        texts.append(f"\n{code}\n")
        yield from dict.fromkeys(parts.sub("", text) for text in texts)
        for tag in (*tags, r"\boxed{", TOO_LARGE, UNKNOWN.text, "says:"):
            yield f"{tag} {tag}\n"

    @property
    def syllables(self) -> Sequence[str]:
        """Of names, and pairs of digits, of which large numbers consist."""
        return (*SYLLABLES, *(f"{number:02}" for number in range(100)))


def _size(data: str, most: int | None) -> int:
    return SIZES[data] if most is None else min(most, SIZES[data])
