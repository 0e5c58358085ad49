"""Abacus as a world that a recipe can name."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Annotated

from pydantic import Field, PositiveInt

from fieldcraft.types import Action, Dialect, Observation, Step, Task, Thought, Trajectory
from fieldcraft.worlds.abacus.curriculum import SIZES, Curriculum
from fieldcraft.worlds.abacus.lone import lone_demonstration
from fieldcraft.worlds.abacus.notes import MODULE, Notebook
from fieldcraft.worlds.abacus.oracle import TOO_LARGE, UNKNOWN, AbacusOracle
from fieldcraft.worlds.abacus.questions import (
    SPLITS,
    evaluation_tasks,
    new_abacus,
    train_tasks,
)
from fieldcraft.worlds.abacus.team import MISTAKES, team_demonstration
from fieldcraft.worlds.base import Schemas, TrajectoryPair, World
from fieldcraft.worlds.naming import SYLLABLES

GIVEN_SHARE = 0.3  # of the people with a question whose note was given away
SAMPLE = 400  # questions whose texts a tokenizer is made from


class AbacusWorld(World):
    """Sums for the head and for Python; `instructions` and `notes` say what is in it."""

    splits = SPLITS
    datasets = ("base", "demonstrations", "wasteful", "careless", "team")
    toolless = ("base",)
    pair_sets = ("pairs",)

    def __init__(
        self,
        seed: int,
        notes: PositiveInt = 1500,
        heldout_notes: PositiveInt = 600,
        mistakes: Annotated[float, Field(ge=0, le=1)] = MISTAKES,
    ) -> None:
        """Write the notes.

        Args:
            seed: of the run.
            notes: people with a note whom training asks about.
            heldout_notes: people with a note whom evaluations ask about.
            mistakes: share of the team's chains with a mistake, for each of three kinds.
        """
        super().__init__(seed)
        self.mistakes = mistakes
        rng, used = random.Random(f"notes:{seed}"), set[str]()
        self.training, self.testing = (
            new_abacus(rng, count, round(count * GIVEN_SHARE), used, heldout=heldout)
            for count, heldout in ((notes, False), (heldout_notes, True))
        )
        self.notebook = self.training.notebook | self.testing.notebook

    def passages(self) -> list[dict[str, str]]:
        """Return no passages: nothing is searched here."""
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
        curriculum, size = self._curriculum(dialect, tools), _size(data, count)
        return curriculum.base(size) if data in self.toolless else curriculum.encoded(data, size)

    def shown(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[tuple[Task, list[Step]]]:
        if data in self.toolless:
            return super().shown(data, count, dialect, tools)
        return self._curriculum(dialect, tools).shown(data, _size(data, count))

    def pairs(
        self, data: str, count: int | None, dialect: Dialect, tools: Schemas
    ) -> list[TrajectoryPair]:
        return self._curriculum(dialect, tools).pairs(_size(data, count))

    def _curriculum(self, dialect: Dialect, tools: Schemas) -> Curriculum:
        reserved = frozenset(chain(*self.testing.names.values()))
        return Curriculum(dialect, tools, reserved, self.seed, self.mistakes)

    @property
    def oracle(self) -> AbacusOracle:
        return AbacusOracle(self.notebook)

    def team_chain(self, task: Task, rng: random.Random) -> list[Step]:
        return team_demonstration(self._asked(task), task, rng, self.mistakes)

    def lone_chain(self, task: Task, rng: random.Random) -> list[Step]:
        return lone_demonstration(self._asked(task), task, rng, self.mistakes)

    def _asked(self, task: Task) -> Notebook:
        """Return the notebook that a question is about, so that a mistake of training names nobody
        whom evaluations ask about."""
        return (self.testing if task.meta.get("split") in SPLITS else self.training).notebook

    def tokenizer_texts(self, tags: Sequence[str]) -> Iterable[str]:
        """Yield all texts that a model of this world reads and writes, without names and
        numbers."""
        parts = re.compile(r"\d+|[A-Z]\w* [A-Z]\w*(?=[.,\"]| has)")
        rng = random.Random(0)
        texts = []
        for task in train_tasks(self.training, self.seed, SAMPLE):
            texts.append(f"{task.question}\n\n")
            steps = self.oracle.demonstration(task)
            if "<reflection>" in tags:  # what a team says, with every mistake
                steps += team_demonstration(self.training.notebook, task, rng, mistakes=1.0)
            for step in steps:
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
        """Syllables of names, and pairs of digits, of which large numbers consist."""
        return (*SYLLABLES, *(f"{number:02}" for number in range(100)))


def _size(data: str, most: int | None) -> int:
    return SIZES[data] if most is None else min(most, SIZES[data])
