"""The training data of the world Abacus: sums in the head, demonstrations and pairs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fieldcraft.dialects.base import encode_written
from fieldcraft.dialects.demonstrations import encode_demonstration, encode_pair
from fieldcraft.types import Author, Dialect, Segment, Step, Task, Trajectory
from fieldcraft.worlds.abacus.instructions import (
    OPERATIONS,
    SMALL,
    SMALL_STEP,
    Change,
    Instruction,
)
from fieldcraft.worlds.abacus.notes import Notebook
from fieldcraft.worlds.abacus.oracle import (
    CAREFUL_SHARE,
    HURRIED_SHARE,
    AbacusOracle,
    always,
    closed_book,
    in_a_hurry,
    is_needed,
)
from fieldcraft.worlds.abacus.questions import STEPS, Abacus, new_abacus, train_tasks
from fieldcraft.worlds.abacus.team import MISTAKES, team_demonstration
from fieldcraft.worlds.base import TrajectoryPair

READING_SHARE = 0.3  # of the base model's texts
TOO_LARGE_SHARE = 0.2  # of the base model's texts
NOTES_AT_ONCE = 200  # in a notebook made for demonstrations
READ_AT_ONCE = 3  # notes
SIZES = {
    "base": 20_000,
    "demonstrations": 12_000,
    "wasteful": 12_000,
    "careless": 12_000,
    "team": 12_000,
    "pairs": 3_000,
}
Way = Callable[[Abacus, Task, random.Random], list[Step]]  # of answering a question


@dataclass(frozen=True)
class Curriculum:
    """Data for every stage of a run on Abacus, a function of the world, the dialect and the seed.

    Demonstrations are about notebooks of their own, so a note can only be read, not remembered.
    `reserved` are the names of the evaluations.
    """

    dialect: Dialect
    schemas: Sequence[dict[str, Any]]
    reserved: frozenset[str]
    seed: int
    mistakes: float = MISTAKES  # see `team_demonstration`

    def base(self, count: int) -> list[Trajectory]:
        """Return the texts of the base model. It learns to answer with small numbers in its head
        (half of the questions have one step), what is too large for it, and to read: it gets notes,
        and then says what is in them, in any order. It never sees a program."""
        rng = random.Random(f"base:{self.seed}")
        abacus = Abacus(Notebook({}, {}), heldout=False)
        sums = single_sums()
        reading = round(count * READING_SHARE)
        large = round(count * TOO_LARGE_SHARE)
        instructions = [abacus.large(rng, rng.choice(STEPS)) for _ in range(large)]
        for index in range(count - reading - large):
            several = abacus.small(rng, rng.choice(STEPS[1:]))
            instructions.append(rng.choice(sums) if index % 2 else several)
        return [self._reading(rng) for _ in range(reading)] + [
            self._encode(abacus.direct(told, "train"), closed_book(told)) for told in instructions
        ]

    def encoded(self, data: str, count: int) -> list[Trajectory]:
        """Return a set of demonstrations as trajectories."""
        return [self._encode(*each) for each in self.shown(data, count)]

    def shown(self, data: str, count: int) -> list[tuple[Task, list[Step]]]:
        """Return the questions and steps of a set of demonstrations, each answered in a way of its
        own."""
        ways: Mapping[str, Way] = {
            "demonstrations": self._briefly,
            "wasteful": self._wastefully,
            "careless": self._carelessly,
            "team": self._as_a_team,
        }
        rng, questions = random.Random(f"{data}:{self.seed}"), self._questions(data)
        return [(task, ways[data](abacus, task, rng)) for abacus, task in islice(questions, count)]

    def _briefly(self, abacus: Abacus, task: Task, rng: random.Random) -> list[Step]:
        """Return the steps to an answer, with as few programs as possible."""
        return AbacusOracle(abacus.notebook).demonstration(task)

    def _wastefully(self, abacus: Abacus, task: Task, rng: random.Random) -> list[Step]:
        """Return the steps of a teacher who, for every second question, also has small numbers
        computed."""
        return _wasteful(abacus, rng).demonstration(task)

    def _carelessly(self, abacus: Abacus, task: Task, rng: random.Random) -> list[Step]:
        """Return the steps of the wasteful teacher who is in a hurry for half of the questions.
        Many of these answers are wrong."""
        oracle = _wasteful(abacus, rng)
        steps = oracle.demonstration(task)
        if rng.random() < HURRIED_SHARE:
            return in_a_hurry(steps, oracle.instruction(task), rng)
        return steps

    def _as_a_team(self, abacus: Abacus, task: Task, rng: random.Random) -> list[Step]:
        """Return the steps of a team that makes mistakes and repairs them."""
        return team_demonstration(abacus.notebook, task, rng, self.mistakes)

    def pairs(self, count: int) -> list[TrajectoryPair]:
        """Return contrastive steps: thinking against a program, and a program against a guess."""
        rng = random.Random(f"choices:{self.seed}")
        return list(islice(self._pairs(rng), count))

    def _pairs(self, rng: random.Random) -> Iterator[TrajectoryPair]:
        for abacus, task in self._questions("pairs"):
            for decision in AbacusOracle(abacus.notebook).decisions(task, rng):
                ways = (decision.chosen, decision.rejected)
                yield encode_pair(task, decision.before, ways, self.dialect, self.schemas)

    def _questions(self, data: str) -> Iterator[tuple[Abacus, Task]]:
        """Yield the questions of all kinds without end, about one new notebook after the other."""
        number = 0
        while True:
            rng = random.Random(f"{data}:{self.seed}:{number}")
            abacus = new_abacus(
                rng, NOTES_AT_ONCE, NOTES_AT_ONCE, set(self.reserved), heldout=False
            )
            for task in train_tasks(abacus, rng.randrange(2**32), NOTES_AT_ONCE):
                yield abacus, task
            number += 1

    def _reading(self, rng: random.Random) -> Trajectory:
        notes = new_abacus(rng, READ_AT_ONCE, 0, set(self.reserved), heldout=False).notebook.kept
        read = "".join(f"{name}\n{told}\n\n" for name, told in notes.items())
        said = [f"The note of {name} says: {told}" for name, told in notes.items()]
        rng.shuffle(said)
        task = Task(f"reading:{'/'.join(notes)}", "", ())
        return Trajectory(
            task, [self._segment(Author.PROMPT, read), self._segment(Author.POLICY, " ".join(said))]
        )

    def _segment(self, author: Author, text: str) -> Segment:
        return Segment(author, encode_written(self.dialect.tokenizer, text), text)

    def _encode(self, task: Task, steps: Sequence[Step]) -> Trajectory:
        return encode_demonstration(task, steps, self.dialect, self.schemas)


def _wasteful(abacus: Abacus, rng: random.Random) -> AbacusOracle:
    return AbacusOracle(abacus.notebook, always if rng.random() < CAREFUL_SHARE else is_needed)


def single_sums() -> list[Instruction]:
    """Return everything that the base model is taught to add and to take away."""
    every = (
        Instruction(start, (Change(symbol, number),))
        for start in SMALL
        for symbol in OPERATIONS
        for number in SMALL_STEP
    )
    return [instruction for instruction in every if instruction.is_small]
