"""Scripted team of Abacus that repairs its errors, and a single agent that does not."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from fieldcraft.data.world import merge_thoughts
from fieldcraft.dialects.afm_grades import POOR_GRADE, make_double_check
from fieldcraft.extensions.methods.afm_code import make_review
from fieldcraft.extensions.worlds.abacus.instructions import (
    OPERATIONS,
    Instruction,
    InstructionStep,
    Notebook,
    make_moved_error,
)
from fieldcraft.extensions.worlds.abacus.oracle import (
    COMPUTE_THOUGHT,
    NOTE_QUESTION,
    READ_THOUGHT,
    AbacusOracle,
    make_compute_call,
    make_read_call,
)
from fieldcraft.types import Answer, DemoStep, Observation, Task, Thought, ThoughtRole, ToolCall

MISTAKE_SHARE = 0.25  # fraction of chains with an error, for each kind of error
OTHER_SYMBOLS = {"+": "-", "-": "+", "*": "+"}


class CodeMistake(Enum):
    """Kind of error in a chain, each of which occurs at most once."""

    NOTE = auto()  # another person's note is read; detected by the following reflection
    PROGRAM = auto()  # a wrong program is run; detected by the following reflection
    ANSWER = auto()  # a wrong result is suggested; detected by the double check


def draw_mistakes(rng: random.Random, share: float) -> set[CodeMistake]:
    """Draw the errors of a chain, each with the probability `share`."""
    return {mistake for mistake in CodeMistake if rng.random() < share}


@dataclass(frozen=True, slots=True)
class WrongProgram:
    """A program that does not execute an instruction correctly, its output, and a review of it."""

    code: str
    output: str
    review: str

    @property
    def steps(self) -> list[DemoStep]:
        return [ToolCall("python", {"code": self.code}), Observation(self.output)]


def draw_wrong_program(instruction: Instruction, rng: random.Random) -> WrongProgram:
    """Return a program without the parentheses or the last operation, or with a wrong operation."""
    *others, last = instruction.steps
    phrase = f"{OPERATIONS[last.symbol].phrase} {last.number}"
    found = [_make_wrong_program(_replace_symbol(instruction, last), f"It must {phrase}.")]
    if others:
        found.append(
            _make_wrong_program(replace(instruction, steps=tuple(others)), f"It does not {phrase}.")
        )
    if instruction.is_trap:
        printed = str(instruction.naive_result)
        missing = "The parentheses are missing."
        found.append(WrongProgram(f"print({instruction.naive_expression})", printed, missing))
    return rng.choice(found)


def _replace_symbol(instruction: Instruction, last: InstructionStep) -> Instruction:
    other = InstructionStep(OTHER_SYMBOLS[last.symbol], last.number)
    return replace(instruction, steps=(*instruction.steps[:-1], other))


def _make_wrong_program(instruction: Instruction, review: str) -> WrongProgram:
    return WrongProgram(f"print({instruction.expression})", str(instruction.result), review)


def draw_wrong_result(instruction: Instruction, rng: random.Random) -> str:
    """Return a number of the instruction, or one of its intermediate values."""
    near = [*instruction.values[:-1], *(change.number for change in instruction.steps)]
    return str(rng.choice([number for number in near if number != instruction.result]))


def draw_other_note(notebook: Notebook, name: str, rng: random.Random) -> str:
    """Return another person who keeps a note in the same notebook."""
    return rng.choice(
        [other for other in notebook.instructions if other != notebook.get_holder(name)]
    )


def make_team_demonstration(
    notebook: Notebook, task: Task, rng: random.Random, mistakes: float = MISTAKE_SHARE
) -> list[DemoStep]:
    """Return the chain of a team that plans once, writes programs, reflects after each, and
    suggests and checks its answer. The final answer is correct. The dialect `afm-code` can render
    the chain.

    `rng` determines the errors; `mistakes` is the probability of each kind.
    """
    builder = _CodeDemonstrationBuilder(notebook, draw_mistakes(rng, mistakes), rng)
    instruction = AbacusOracle(notebook).get_instruction(task)
    if found := NOTE_QUESTION.match(task.question):
        builder.plan(f"Read the note of {found[1]}, then follow it.")
        builder.read(found[1])
    else:
        builder.plan("Count in the head." if instruction.is_small else "Compute it by a program.")
    builder.follow(instruction)
    return merge_thoughts(builder.steps)


@dataclass
class _CodeDemonstrationBuilder:
    """Builder of a chain."""

    notebook: Notebook
    mistakes: set[CodeMistake]
    rng: random.Random
    steps: list[DemoStep] = field(default_factory=list)

    def plan(self, text: str) -> None:
        self.steps.append(Thought(text, ThoughtRole.PLAN))

    def think(self, text: str) -> None:
        self.steps.append(Thought(text))

    def read(self, name: str) -> None:
        """Read the note of a person from its current holder."""
        if CodeMistake.NOTE in self.mistakes:
            other = draw_other_note(self.notebook, name, self.rng)
            self._run_program(
                READ_THOUGHT, make_read_call(other), str(self.notebook.instructions[other])
            )
            self.steps.append(make_review(f"This is not the note of {name}.", POOR_GRADE))
        holder = self.notebook.get_holder(name)
        if holder != name:
            self._run_program(READ_THOUGHT, make_read_call(name), make_moved_error(name, holder))
            self.steps.append(make_review(f"{holder} has the note.", "Fair"))
        self._run_program(
            READ_THOUGHT, make_read_call(holder), str(self.notebook.instructions[holder])
        )
        self.steps.append(make_review("It says what to do.", "Good"))

    def follow(self, instruction: Instruction) -> None:
        """Execute an instruction, without a program if its numbers are small, and answer."""
        if instruction.is_small:
            self.think(" ".join(instruction.statements))
        else:
            self._compute(instruction)
        if CodeMistake.ANSWER in self.mistakes:
            self._suggest(draw_wrong_result(instruction, self.rng), "is not", 1)
            if instruction.is_small:
                self._run_correct_program(instruction)
        result = str(instruction.result)
        self._suggest(result, "is", 4)
        self.steps.append(Answer(result))

    def _compute(self, instruction: Instruction) -> None:
        if CodeMistake.PROGRAM in self.mistakes:
            wrong = draw_wrong_program(instruction, self.rng)
            self.think(COMPUTE_THOUGHT)
            self.steps += [*wrong.steps, make_review(wrong.review, POOR_GRADE)]
        self._run_correct_program(instruction)

    def _run_correct_program(self, instruction: Instruction) -> None:
        self._run_program(COMPUTE_THOUGHT, make_compute_call(instruction), str(instruction.result))
        self.steps.append(make_review("It does every step.", "Good"))

    def _run_program(self, thought: str, action: ToolCall, printed: str) -> None:
        self.steps += [Thought(thought), action, Observation(printed)]

    def _suggest(self, result: str, verb: str, score: int) -> None:
        """Suggest a result and score it."""
        self.think("I know enough.")
        self.steps.append(Thought(result, ThoughtRole.SUGGEST))
        self.think(f"This {verb} the result.")
        self.steps.append(make_double_check(score))


def make_single_agent_demonstration(
    notebook: Notebook, task: Task, rng: random.Random, mistakes: float
) -> list[DemoStep]:
    """Return the chain of an agent that thinks and runs programs (ReAct, arXiv 2210.03629). It has
    no plan, reflection or check, so errors are not repaired, and its answer may be wrong.

    `rng` determines its errors; `mistakes` is the probability of each kind of `CodeMistake`.
    """
    drawn_mistakes = draw_mistakes(rng, mistakes)
    steps: list[DemoStep] = []
    instruction = AbacusOracle(notebook).get_instruction(task)
    if found := NOTE_QUESTION.match(task.question):
        name = found[1]
        if CodeMistake.NOTE in drawn_mistakes:
            name = draw_other_note(notebook, name, rng)
        holder = notebook.get_holder(name)
        if holder != name:
            steps += [
                Thought(READ_THOUGHT),
                make_read_call(name),
                Observation(make_moved_error(name, holder)),
            ]
        instruction = notebook.instructions[holder]
        steps += [Thought(READ_THOUGHT), make_read_call(holder), Observation(str(instruction))]
    result = str(instruction.result)
    if instruction.is_small:
        steps += map(Thought, instruction.statements)
    elif CodeMistake.PROGRAM in drawn_mistakes:
        wrong = draw_wrong_program(instruction, rng)
        steps += [Thought(COMPUTE_THOUGHT), *wrong.steps]
        result = wrong.output
    else:
        steps += [Thought(COMPUTE_THOUGHT), make_compute_call(instruction), Observation(result)]
    if CodeMistake.ANSWER in drawn_mistakes:
        result = draw_wrong_result(instruction, rng)
    return merge_thoughts([*steps, Answer(result)])
