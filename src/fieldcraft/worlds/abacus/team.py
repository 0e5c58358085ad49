"""A team of scripted agents that answers questions of Abacus, with mistakes that it repairs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from fieldcraft.dialects.afm import POOR, double_check
from fieldcraft.dialects.afm_code import review
from fieldcraft.types import Action, Answer, Observation, Role, Step, Task, Thought
from fieldcraft.worlds.abacus.instructions import OPERATIONS, Change, Instruction
from fieldcraft.worlds.abacus.notes import Notebook, moved
from fieldcraft.worlds.abacus.oracle import (
    ASKED,
    COMPUTING,
    READING,
    AbacusOracle,
    computing,
    reading,
)
from fieldcraft.worlds.base import merge_thoughts

MISTAKES = 0.25  # the share of the chains with a mistake, for each kind of mistake
OTHER_SYMBOL = {"+": "-", "-": "+", "*": "+"}


class CodeMistake(Enum):
    """Mistake that can occur in a chain, once of each kind."""

    NOTE = auto()  # the note of somebody else is read; the reflection after it sees that
    PROGRAM = auto()  # a program that does something else; the reflection after it sees that
    ANSWER = auto()  # a wrong result is suggested; the double check sees that


def draw_mistakes(rng: random.Random, share: float) -> set[CodeMistake]:
    """Draw the mistakes of a chain, each with the probability `share`."""
    return {mistake for mistake in CodeMistake if rng.random() < share}


@dataclass(frozen=True, slots=True)
class WrongProgram:
    """A program that does something else than an instruction, what it prints, and what a reviewer
    says of it."""

    code: str
    printed: str
    review: str

    @property
    def steps(self) -> list[Step]:
        return [Action("python", {"code": self.code}), Observation(self.printed)]


def wrong_program(instruction: Instruction, rng: random.Random) -> WrongProgram:
    """Return a program that forgets the parentheses, the last change or the kind of a change."""
    *others, last = instruction.changes
    asked = f"{OPERATIONS[last.symbol].asked} {last.number}"
    found = [_of(_with_other_symbol(instruction, last), f"It must {asked}.")]
    if others:
        found.append(_of(replace(instruction, changes=tuple(others)), f"It does not {asked}."))
    if instruction.is_trap:
        printed = str(instruction.obvious_result)
        missing = "The parentheses are missing."
        found.append(WrongProgram(f"print({instruction.obvious})", printed, missing))
    return rng.choice(found)


def _with_other_symbol(instruction: Instruction, last: Change) -> Instruction:
    other = Change(OTHER_SYMBOL[last.symbol], last.number)
    return replace(instruction, changes=(*instruction.changes[:-1], other))


def _of(instruction: Instruction, review: str) -> WrongProgram:
    return WrongProgram(f"print({instruction.expression})", str(instruction.result), review)


def wrong_result(instruction: Instruction, rng: random.Random) -> str:
    """Return a number of the instruction, or one on the way to its result."""
    near = [*instruction.values[:-1], *(change.number for change in instruction.changes)]
    return str(rng.choice([number for number in near if number != instruction.result]))


def other_note(notebook: Notebook, name: str, rng: random.Random) -> str:
    """Return somebody else who keeps a note, in the notebook of the same questions."""
    return rng.choice([kept for kept in notebook.kept if kept != notebook.holder(name)])


def team_demonstration(
    notebook: Notebook, task: Task, rng: random.Random, mistakes: float = MISTAKES
) -> list[Step]:
    """Return the chain of a team that plans once, writes programs, reflects after every one, and
    suggests and checks its answer, which is right in the end. The dialect `afm-code` can write it.

    `rng` fixes which mistakes it makes; `mistakes` is the probability of each kind.
    """
    work = _CodeWork(notebook, draw_mistakes(rng, mistakes), rng)
    instruction = AbacusOracle(notebook).instruction(task)
    if found := ASKED.match(task.question):
        work.plan(f"Read the note of {found[1]}, then follow it.")
        work.read(found[1])
    else:
        work.plan("Count in the head." if instruction.is_small else "Compute it by a program.")
    work.follow(instruction)
    return merge_thoughts(work.steps)


@dataclass
class _CodeWork:
    """A chain while it grows."""

    notebook: Notebook
    mistakes: set[CodeMistake]
    rng: random.Random
    steps: list[Step] = field(default_factory=list)

    def plan(self, text: str) -> None:
        self.steps.append(Thought(text, Role.PLAN))

    def think(self, text: str) -> None:
        self.steps.append(Thought(text))

    def read(self, name: str) -> None:
        """Read the note of a person, wherever it is."""
        if CodeMistake.NOTE in self.mistakes:
            other = other_note(self.notebook, name, self.rng)
            self._run(READING, reading(other), str(self.notebook.kept[other]))
            self.steps.append(review(f"This is not the note of {name}.", POOR))
        holder = self.notebook.holder(name)
        if holder != name:
            self._run(READING, reading(name), moved(name, holder))
            self.steps.append(review(f"{holder} has the note.", "Fair"))
        self._run(READING, reading(holder), str(self.notebook.kept[holder]))
        self.steps.append(review("It says what to do.", "Good"))

    def follow(self, instruction: Instruction) -> None:
        """Follow an instruction, in the head if its numbers are small, and answer."""
        if instruction.is_small:
            self.think(" ".join(instruction.statements))
        else:
            self._compute(instruction)
        if CodeMistake.ANSWER in self.mistakes:
            self._suggest(wrong_result(instruction, self.rng), "is not", 1)
            if instruction.is_small:
                self._program(instruction)
        result = str(instruction.result)
        self._suggest(result, "is", 4)
        self.steps.append(Answer(result))

    def _compute(self, instruction: Instruction) -> None:
        if CodeMistake.PROGRAM in self.mistakes:
            wrong = wrong_program(instruction, self.rng)
            self.think(COMPUTING)
            self.steps += [*wrong.steps, review(wrong.review, POOR)]
        self._program(instruction)

    def _program(self, instruction: Instruction) -> None:
        self._run(COMPUTING, computing(instruction), str(instruction.result))
        self.steps.append(review("It does every step.", "Good"))

    def _run(self, thought: str, action: Action, printed: str) -> None:
        self.steps += [Thought(thought), action, Observation(printed)]

    def _suggest(self, result: str, verb: str, score: int) -> None:
        """Suggest a result and score it."""
        self.think("I know enough.")
        self.steps.append(Thought(result, Role.SUGGEST))
        self.think(f"This {verb} the result.")
        self.steps.append(double_check(score))
