"""Questions of Abacus, to train and to test on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from fieldcraft.types import Task
from fieldcraft.worlds.abacus.instructions import (
    FACTOR,
    LARGE,
    SMALL,
    SMALL_STEP,
    Change,
    Instruction,
    find_instruction,
    is_heldout,
)
from fieldcraft.worlds.abacus.notes import Notebook, new_notebook

STEPS = (1, 2, 3)  # changes of an instruction, in training
SPLITS = {
    "heldout": "New numbers and new notes: a program is needed",
    "known": "Small numbers: no program is needed",
    "mixed": "As in training: with and without programs",
    "traps": "Direct questions whose obvious program is wrong",
    "four_steps": "One step more than in training",
}
# Shares of the kinds of questions: in the head, by one program, with a note, with a note that was
# given away. Two of five notes have small numbers.
SHARES = {"head": 0.3, "program": 0.3, "note": 0.25, "given": 0.15}
SMALL_NOTES = 0.4
ATTEMPTS = 50  # to find one more distinct question, before a split is taken as exhausted


@dataclass(frozen=True)
class Abacus:
    """A notebook that questions ask about. `heldout` says which numbers occur: only those that no
    training has, or only the others."""

    notebook: Notebook
    heldout: bool

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """Whom questions of the two kinds with a note are about."""
        return {"note": list(self.notebook.kept), "given": list(self.notebook.given)}

    def large(self, rng: random.Random, steps: int) -> Instruction:
        """Draw a random instruction with large numbers, whose result is not negative, and in which
        no pair of digits occurs twice."""
        while True:
            start = self._number(rng, LARGE)
            changes = tuple(self._change(rng, rng.choice("+-*")) for _ in range(steps))
            found = Instruction(start, changes)
            if min(found.values) >= 0 and not found.repeats_digits:
                return found

    def _change(self, rng: random.Random, symbol: str) -> Change:
        return Change(symbol, self._number(rng, FACTOR if symbol == "*" else LARGE))

    def _number(self, rng: random.Random, numbers: range) -> int:
        while is_heldout(number := rng.choice(numbers)) != self.heldout:
            pass
        return number

    def small(self, rng: random.Random, steps: int) -> Instruction:
        """Draw a random instruction with small numbers, of training or of evaluations."""
        while True:
            changes = tuple(Change(rng.choice("+-"), rng.choice(SMALL_STEP)) for _ in range(steps))
            found = Instruction(rng.choice(SMALL), changes)
            if found.is_small and (steps == 1 or found.is_test == self.heldout):
                return found

    def task(self, kind: str, rng: random.Random, split: str) -> Task:
        """Draw a random question of a kind."""
        if kind in self.names:
            return self.about_note(rng.choice(self.names[kind]), split)
        steps = rng.choice(STEPS)
        return self.direct((self.small if kind == "head" else self.large)(rng, steps), split)

    def direct(self, instruction: Instruction, split: str) -> Task:
        """Return the question that says what to do."""
        kind = "head" if instruction.is_small else "program"
        return self._task(str(instruction), instruction, kind, split, {})

    def about_note(self, name: str, split: str) -> Task:
        """Return the question whose note says what to do."""
        kind = "given" if name in self.notebook.given else "note"
        meta = {"cluster": self.notebook.holder(name)}
        instruction = self.notebook.instruction(name)
        return self._task(f"Follow the note of {name}.", instruction, kind, split, meta)

    def _task(
        self, told: str, instruction: Instruction, kind: str, split: str, meta: Mapping[str, str]
    ) -> Task:
        reads = {"head": 0, "program": 0, "note": 1, "given": 2}[kind]
        known = {
            "split": split,
            "kind": kind,
            "hops": len(instruction.changes),
            "known": kind == "head",
            # of programs that do one thing: one that reads a note may compute as well
            "calls_optimal": reads + (not instruction.is_small),
        }
        question = f"{told} What is the result?"
        return Task(f"abacus:{told}", question, (str(instruction.result),), {**known, **meta})


def new_abacus(
    rng: random.Random, notes: int, given: int, used: set[str], *, heldout: bool
) -> Abacus:
    """Make an abacus with a new notebook; its names are added to `used`."""
    empty = Abacus(Notebook({}, {}), heldout)
    instructions = [
        (empty.small if rng.random() < SMALL_NOTES else empty.large)(rng, rng.choice(STEPS))
        for _ in range(notes)
    ]
    return Abacus(new_notebook(instructions, given, rng, used), heldout)


def train_tasks(abacus: Abacus, seed: int, count: int) -> list[Task]:
    """Return up to `count` distinct questions, by SHARES."""
    return distinct(lambda rng: _any_kind(abacus, rng, "train"), random.Random(f"t:{seed}"), count)


def evaluation_tasks(abacus: Abacus, seed: int, splits: Mapping[str, int]) -> list[Task]:
    """Return distinct questions to test on; `splits` says how many of each, at most. No split
    depends on the others. No training has their large numbers, their notes, or their small
    instructions of several steps."""
    draws: dict[str, Callable[[random.Random], Task | None]] = {
        "heldout": lambda rng: _needing_programs(abacus, rng),
        "known": lambda rng: _several_steps(abacus, rng),
        "mixed": lambda rng: _any_kind(abacus, rng, "mixed"),
        "traps": lambda rng: _trap(abacus, rng),
        "four_steps": lambda rng: abacus.direct(abacus.large(rng, 4), "four_steps"),
    }
    return [
        task
        for name, draw in draws.items()
        for task in distinct(draw, random.Random(f"{name}:{seed}"), splits.get(name, 0))
    ]


def distinct(
    draw: Callable[[random.Random], Task | None], rng: random.Random, count: int
) -> list[Task]:
    """Return up to `count` different questions of those that `draw` returns; None is drawn
    again."""
    found: dict[str, Task] = {}
    failed = 0
    while len(found) < count and failed < ATTEMPTS:
        task = draw(rng)
        if task is None or task.id in found:
            failed += 1
        else:
            found[task.id] = task
            failed = 0
    return list(found.values())


def _any_kind(abacus: Abacus, rng: random.Random, split: str) -> Task:
    [kind] = rng.choices(list(SHARES), list(SHARES.values()))
    return abacus.task(kind, rng, split)


def _needing_programs(abacus: Abacus, rng: random.Random) -> Task:
    kinds = [kind for kind in SHARES if kind != "head"]
    [kind] = rng.choices(kinds, [SHARES[kind] for kind in kinds])
    return abacus.task(kind, rng, "heldout")


def _several_steps(abacus: Abacus, rng: random.Random) -> Task:
    return abacus.direct(abacus.small(rng, rng.choice(STEPS[1:])), "known")


def _trap(abacus: Abacus, rng: random.Random) -> Task | None:
    instruction = abacus.large(rng, rng.choice(STEPS[1:]))
    return abacus.direct(instruction, "traps") if instruction.is_trap else None


def instruction_of(task: Task) -> Instruction | None:
    """Return what a question says to do; None if a note says it."""
    return find_instruction(task.question)
