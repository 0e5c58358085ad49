"""Training data of the world Abacus: mental arithmetic, demonstrations and pairs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from fieldcraft.data.world import Demonstration
from fieldcraft.dialects.base import encode_policy_text
from fieldcraft.dialects.encoding import DemonstrationEncoder, TrajectoryPair
from fieldcraft.extensions.worlds.abacus.instructions import (
    OPERATIONS,
    SMALL_NUMBERS,
    SMALL_STEPS,
    Instruction,
    InstructionStep,
    Notebook,
)
from fieldcraft.extensions.worlds.abacus.oracle import (
    CAREFUL_SHARE,
    HURRIED_SHARE,
    AbacusOracle,
    always_compute,
    make_careless,
    make_closed_book_steps,
    needs_program,
)
from fieldcraft.extensions.worlds.abacus.questions import (
    NUM_STEPS,
    Abacus,
    draw_train_tasks,
    make_abacus,
)
from fieldcraft.extensions.worlds.abacus.team import MISTAKE_SHARE, make_team_demonstration
from fieldcraft.types import Author, DemoStep, Segment, Task, Trajectory

READING_SHARE = 0.3  # fraction of the base model's texts
TOO_LARGE_SHARE = 0.2  # fraction of the base model's texts
NOTES_AT_ONCE = 200  # notes per notebook made for demonstrations
READ_AT_ONCE = 3  # notes per reading text
DATASET_SIZES = {
    "base": 20_000,
    "demonstrations": 12_000,
    "wasteful": 12_000,
    "careless": 12_000,
    "team": 12_000,
    "pairs": 3_000,
}
AnswerFunction = Callable[[Abacus, Task, random.Random], list[DemoStep]]  # answers a question


@dataclass(frozen=True)
class AbacusDemonstrations:
    """Demonstrations of a run on Abacus, determined by the world and the seed.

    They use separate notebooks, so notes have to be read and cannot be memorised. `reserved` holds
    the names that occur in evaluations.
    """

    reserved: frozenset[str]
    seed: int
    mistakes: float = MISTAKE_SHARE  # see `make_team_demonstration`

    def demonstrations(self, dataset: str, count: int) -> list[Demonstration]:
        """Return the questions and steps of a dataset, each of which has its own way to answer."""
        answer_functions: Mapping[str, AnswerFunction] = {
            "demonstrations": self._answer_briefly,
            "wasteful": self._answer_wastefully,
            "careless": self._answer_carelessly,
            "team": self._answer_as_team,
        }
        rng, questions = random.Random(f"{dataset}:{self.seed}"), self._iterate_questions(dataset)
        return [
            (task, answer_functions[dataset](abacus, task, rng))
            for abacus, task in islice(questions, count)
        ]

    def _answer_briefly(self, abacus: Abacus, task: Task, rng: random.Random) -> list[DemoStep]:
        """Return the steps to an answer with the minimum number of programs."""
        return AbacusOracle(abacus.notebook).demonstration(task)

    def _answer_wastefully(self, abacus: Abacus, task: Task, rng: random.Random) -> list[DemoStep]:
        """Return the steps of a wasteful teacher, who also runs programs for small numbers for
        every second question."""
        return _make_wasteful_oracle(abacus, rng).demonstration(task)

    def _answer_carelessly(self, abacus: Abacus, task: Task, rng: random.Random) -> list[DemoStep]:
        """Return the steps of the wasteful teacher, who is careless for half of the questions. Many
        of these answers are wrong."""
        oracle = _make_wasteful_oracle(abacus, rng)
        steps = oracle.demonstration(task)
        if rng.random() < HURRIED_SHARE:
            return make_careless(steps, oracle.get_instruction(task), rng)
        return steps

    def _answer_as_team(self, abacus: Abacus, task: Task, rng: random.Random) -> list[DemoStep]:
        """Return the steps of a team that makes errors and repairs them."""
        return make_team_demonstration(abacus.notebook, task, rng, self.mistakes)

    def _iterate_questions(self, dataset: str) -> Iterator[tuple[Abacus, Task]]:
        """Yield an infinite sequence of questions of all kinds, with a new notebook per batch."""
        number = 0
        while True:
            rng = random.Random(f"{dataset}:{self.seed}:{number}")
            abacus = make_abacus(
                rng, NOTES_AT_ONCE, NOTES_AT_ONCE, set(self.reserved), heldout=False
            )
            for task in draw_train_tasks(abacus, rng.randrange(2**32), NOTES_AT_ONCE):
                yield abacus, task
            number += 1


@dataclass(frozen=True)
class AbacusCurriculum(AbacusDemonstrations):
    """Data for all stages of a run on Abacus, as trajectories."""

    encoder: DemonstrationEncoder = field(kw_only=True)

    def make_base_texts(self, count: int) -> list[Trajectory]:
        """Return the texts of the base model. It learns mental arithmetic with small numbers (half
        of the questions have one step), which numbers are too large for it, and reading: given
        notes, it repeats their contents in any order. It never sees a program."""
        rng = random.Random(f"base:{self.seed}")
        abacus = Abacus(Notebook({}, {}), heldout=False)
        sums = list_single_sums()
        reading = round(count * READING_SHARE)
        large = round(count * TOO_LARGE_SHARE)
        instructions = [abacus.draw_large(rng, rng.choice(NUM_STEPS)) for _ in range(large)]
        for index in range(count - reading - large):
            several = abacus.draw_small(rng, rng.choice(NUM_STEPS[1:]))
            instructions.append(rng.choice(sums) if index % 2 else several)
        return [self._make_reading_text(rng) for _ in range(reading)] + [
            self.encoder.encode(
                abacus.make_direct_task(instruction, "train"), make_closed_book_steps(instruction)
            )
            for instruction in instructions
        ]

    def encode_dataset(self, dataset: str, count: int) -> list[Trajectory]:
        """Return a dataset of demonstrations as trajectories."""
        return [self.encoder.encode(*each) for each in self.demonstrations(dataset, count)]

    def make_pairs(self, count: int) -> list[TrajectoryPair]:
        """Return contrastive steps: thinking versus a program, and a program versus a guess."""
        rng = random.Random(f"choices:{self.seed}")
        return list(islice(self._iterate_pairs(rng), count))

    def _iterate_pairs(self, rng: random.Random) -> Iterator[TrajectoryPair]:
        for abacus, task in self._iterate_questions("pairs"):
            for decision in AbacusOracle(abacus.notebook).decisions(task, rng):
                sides = (decision.chosen, decision.rejected)
                yield self.encoder.encode_pair(task, decision.before, sides)

    def _make_reading_text(self, rng: random.Random) -> Trajectory:
        notes = make_abacus(
            rng, READ_AT_ONCE, 0, set(self.reserved), heldout=False
        ).notebook.instructions
        note_text = "".join(f"{name}\n{instruction}\n\n" for name, instruction in notes.items())
        sentences = [
            f"The note of {name} says: {instruction}" for name, instruction in notes.items()
        ]
        rng.shuffle(sentences)
        task = Task(f"reading:{'/'.join(notes)}", "", ())
        return Trajectory(
            task,
            [
                self._make_segment(Author.PROMPT, note_text),
                self._make_segment(Author.POLICY, " ".join(sentences)),
            ],
        )

    def _make_segment(self, author: Author, text: str) -> Segment:
        return Segment(author, encode_policy_text(self.encoder.dialect.tokenizer, text), text)


def _make_wasteful_oracle(abacus: Abacus, rng: random.Random) -> AbacusOracle:
    return AbacusOracle(
        abacus.notebook, always_compute if rng.random() < CAREFUL_SHARE else needs_program
    )


def list_single_sums() -> list[Instruction]:
    """Return all additions and subtractions that the base model is taught."""
    instructions = (
        Instruction(start, (InstructionStep(symbol, number),))
        for start in SMALL_NUMBERS
        for symbol in OPERATIONS
        for number in SMALL_STEPS
    )
    return [instruction for instruction in instructions if instruction.is_small]
