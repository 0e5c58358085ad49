"""Training and evaluation questions of Abacus."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from fieldcraft.extensions.worlds.abacus.instructions import (
    FACTORS,
    LARGE_NUMBERS,
    SMALL_NUMBERS,
    SMALL_STEPS,
    Instruction,
    InstructionStep,
    Notebook,
    is_heldout,
    make_notebook,
    parse_instruction,
)
from fieldcraft.extensions.worlds.distinct import draw_distinct_items
from fieldcraft.types import Task

NUM_STEPS = (1, 2, 3)  # operations per instruction, in training
SPLITS = {
    "heldout": "New numbers and new notes: a program is needed",
    "known": "Small numbers: no program is needed",
    "mixed": "As in training: with and without programs",
    "traps": "Direct questions whose obvious program is wrong",
    "four_steps": "One step more than in training",
}
# Fractions of the kinds of questions: mental arithmetic, one program, a note, a note that was given
# away. Two of five notes have small numbers.
KIND_SHARES = {"head": 0.3, "program": 0.3, "note": 0.25, "given": 0.15}
SMALL_NOTE_SHARE = 0.4
MAX_ATTEMPTS = 50  # consecutive failed draws after which a split is considered exhausted


@dataclass(frozen=True)
class Abacus:
    """A notebook that questions refer to. `heldout` selects the numbers: only those reserved for
    evaluations, or only the others."""

    notebook: Notebook
    heldout: bool

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """Names in questions of the two kinds with a note."""
        return {"note": list(self.notebook.instructions), "given": list(self.notebook.new_holders)}

    def draw_large(self, rng: random.Random, steps: int) -> Instruction:
        """Draw a random instruction with large numbers, non-negative values, and no repeated pairs
        of digits."""
        while True:
            start = self._draw_number(rng, LARGE_NUMBERS)
            drawn_steps = tuple(self._draw_step(rng, rng.choice("+-*")) for _ in range(steps))
            found = Instruction(start, drawn_steps)
            if min(found.values) >= 0 and not found.has_repeated_digits:
                return found

    def _draw_step(self, rng: random.Random, symbol: str) -> InstructionStep:
        return InstructionStep(
            symbol, self._draw_number(rng, FACTORS if symbol == "*" else LARGE_NUMBERS)
        )

    def _draw_number(self, rng: random.Random, numbers: range) -> int:
        while is_heldout(number := rng.choice(numbers)) != self.heldout:
            pass
        return number

    def draw_small(self, rng: random.Random, steps: int) -> Instruction:
        """Draw a random instruction with small numbers, for training or for evaluations."""
        while True:
            drawn_steps = tuple(
                InstructionStep(rng.choice("+-"), rng.choice(SMALL_STEPS)) for _ in range(steps)
            )
            found = Instruction(rng.choice(SMALL_NUMBERS), drawn_steps)
            if found.is_small and (steps == 1 or found.is_test == self.heldout):
                return found

    def draw_task(self, kind: str, rng: random.Random, split: str) -> Task:
        """Draw a random question of a kind."""
        if kind in self.names:
            return self.make_note_task(rng.choice(self.names[kind]), split)
        steps = rng.choice(NUM_STEPS)
        return self.make_direct_task(
            (self.draw_small if kind == "head" else self.draw_large)(rng, steps), split
        )

    def make_direct_task(self, instruction: Instruction, split: str) -> Task:
        """Return the question that contains the instruction."""
        kind = "head" if instruction.is_small else "program"
        return self._make_task(str(instruction), instruction, kind, split, {})

    def make_note_task(self, name: str, split: str) -> Task:
        """Return the question that refers to a note."""
        kind = "given" if name in self.notebook.new_holders else "note"
        meta = {"cluster": self.notebook.get_holder(name)}
        instruction = self.notebook.get_instruction(name)
        return self._make_task(f"Follow the note of {name}.", instruction, kind, split, meta)

    def _make_task(
        self,
        instruction_text: str,
        instruction: Instruction,
        kind: str,
        split: str,
        meta: Mapping[str, str],
    ) -> Task:
        num_reads = {"head": 0, "program": 0, "note": 1, "given": 2}[kind]
        base_meta = {
            "split": split,
            "kind": kind,
            "hops": len(instruction.steps),
            "known": kind == "head",
            # for programs with one purpose: a program that reads a note could compute as well
            "calls_optimal": num_reads + (not instruction.is_small),
        }
        question = f"{instruction_text} What is the result?"
        return Task(
            f"abacus:{instruction_text}",
            question,
            (str(instruction.result),),
            {**base_meta, **meta},
        )


def make_abacus(
    rng: random.Random, notes: int, num_given: int, used: set[str], *, heldout: bool
) -> Abacus:
    """Make an abacus with a new notebook; add its names to `used`."""
    empty = Abacus(Notebook({}, {}), heldout)
    instructions = [
        (empty.draw_small if rng.random() < SMALL_NOTE_SHARE else empty.draw_large)(
            rng, rng.choice(NUM_STEPS)
        )
        for _ in range(notes)
    ]
    return Abacus(make_notebook(instructions, num_given, rng, used), heldout)


def draw_train_tasks(abacus: Abacus, seed: int, count: int) -> list[Task]:
    """Return up to `count` distinct questions, distributed by KIND_SHARES."""
    return draw_distinct(
        lambda rng: _draw_any_kind(abacus, rng, "train"), random.Random(f"t:{seed}"), count
    )


def draw_evaluation_tasks(abacus: Abacus, seed: int, splits: Mapping[str, int]) -> list[Task]:
    """Return distinct evaluation questions; `splits` is the maximum number per split. Splits are
    independent of one another. Their large numbers, notes, and small multi-step instructions do not
    occur in training."""
    draws: dict[str, Callable[[random.Random], Task | None]] = {
        "heldout": lambda rng: _draw_program_task(abacus, rng),
        "known": lambda rng: _draw_several_steps(abacus, rng),
        "mixed": lambda rng: _draw_any_kind(abacus, rng, "mixed"),
        "traps": lambda rng: _draw_trap(abacus, rng),
        "four_steps": lambda rng: abacus.make_direct_task(abacus.draw_large(rng, 4), "four_steps"),
    }
    return [
        task
        for name, draw in draws.items()
        for task in draw_distinct(draw, random.Random(f"{name}:{seed}"), splits.get(name, 0))
    ]


def draw_distinct(
    draw: Callable[[random.Random], Task | None], rng: random.Random, count: int
) -> list[Task]:
    """Return up to `count` distinct questions returned by `draw`; None is skipped."""
    drawn = draw_distinct_items(lambda: draw(rng), lambda task: task.id, MAX_ATTEMPTS)
    return [*islice(drawn, count)]


def _draw_any_kind(abacus: Abacus, rng: random.Random, split: str) -> Task:
    [kind] = rng.choices(list(KIND_SHARES), list(KIND_SHARES.values()))
    return abacus.draw_task(kind, rng, split)


def _draw_program_task(abacus: Abacus, rng: random.Random) -> Task:
    kinds = [kind for kind in KIND_SHARES if kind != "head"]
    [kind] = rng.choices(kinds, [KIND_SHARES[kind] for kind in kinds])
    return abacus.draw_task(kind, rng, "heldout")


def _draw_several_steps(abacus: Abacus, rng: random.Random) -> Task:
    return abacus.make_direct_task(abacus.draw_small(rng, rng.choice(NUM_STEPS[1:])), "known")


def _draw_trap(abacus: Abacus, rng: random.Random) -> Task | None:
    instruction = abacus.draw_large(rng, rng.choice(NUM_STEPS[1:]))
    return abacus.make_direct_task(instruction, "traps") if instruction.is_trap else None


def parse_task_instruction(task: Task) -> Instruction | None:
    """Return the instruction in a question, or None if it refers to a note."""
    return parse_instruction(task.question)
