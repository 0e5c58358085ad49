"""Instructions such as `Take 4821, add 377, multiply by 52.`, and notes that hold them.

Programs execute instructions, and read the notes of people in an importable module.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from fieldcraft.extensions.worlds.names import draw_unused_name

SMALL_NUMBERS = range(1, 13)  # numbers whose sums and differences the base model is taught
SMALL_STEPS = range(1, 7)  # numbers that it is taught to add to and subtract from them
LARGE_NUMBERS = range(1000, 10000)  # four digits: two tokens each, so unseen ones can be copied
FACTORS = range(21, 100)
HELDOUT_ONE_IN = 4  # one in so many large numbers and factors occurs only in evaluations
TEST_ONE_IN = 5  # one in so many small multi-step instructions occurs only in evaluations
NOTES_MODULE = "notes.py"


@dataclass(frozen=True, slots=True)
class Operation:
    """An arithmetic operation: its wording in questions and thoughts, and its Python operator."""

    phrase: str
    thought_word: str
    symbol: str
    apply: Callable[[int, int], int]


OPERATIONS = {
    "+": Operation("add", "plus", "+", int.__add__),
    "-": Operation("take away", "minus", "-", int.__sub__),
    "*": Operation("multiply by", "times", "*", int.__mul__),
}


class InstructionStep(NamedTuple):
    """One step of an instruction: the symbol of an operation, and its number."""

    symbol: str
    number: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction: a start value and the operations to apply, in order."""

    start: int
    steps: tuple[InstructionStep, ...]

    def __str__(self) -> str:
        phrases = [f"{OPERATIONS[symbol].phrase} {number}" for symbol, number in self.steps]
        return ", ".join([f"Take {self.start}", *phrases]) + "."

    @property
    def values(self) -> list[int]:
        """Values after each operation, starting with the start value."""
        return list(
            accumulate(
                self.steps,
                lambda value, change: OPERATIONS[change.symbol].apply(value, change.number),
                initial=self.start,
            )
        )

    @property
    def result(self) -> int:
        """Final value."""
        return self.values[-1]

    @property
    def statements(self) -> list[str]:
        """The operations as separate statements of a thought: `7 plus 5 is 12.`"""
        values = self.values
        return [
            f"{before} {OPERATIONS[symbol].thought_word} {number} is {after}."
            for before, (symbol, number), after in zip(values, self.steps, values[1:], strict=False)
        ]

    @property
    def expression(self) -> str:
        """Python expression of the whole instruction, with the necessary parentheses."""
        text, is_sum = str(self.start), False
        for symbol, number in self.steps:
            if symbol == "*" and is_sum:
                text = f"({text})"
            text = f"{text} {symbol} {number}"
            is_sum = symbol != "*"
        return text

    @property
    def naive_expression(self) -> str:
        """Expression without parentheses: the obvious program, which may be wrong."""
        return self.expression.replace("(", "").replace(")", "")

    @property
    def naive_result(self) -> int:
        """Output of the obvious program, in which multiplication takes precedence."""
        terms = [self.start]
        for symbol, number in self.steps:
            if symbol == "*":
                terms[-1] *= number
            else:
                terms.append(number if symbol == "+" else -number)
        return sum(terms)

    @property
    def is_small(self) -> bool:
        """Return whether the base model is taught every operation of the instruction."""
        return all(value in SMALL_NUMBERS for value in self.values) and all(
            symbol in "+-" and number in SMALL_STEPS for symbol, number in self.steps
        )

    @property
    def has_repeated_digits(self) -> bool:
        """Return whether a pair of digits occurs twice in its numbers and its result, in the
        tokenization of small models, from the left. Copying such a number is a separate skill,
        unrelated to programs."""
        numbers = [str(n) for n in (self.start, *(c.number for c in self.steps), self.result)]
        pairs = [
            n[position : position + 2] for n in numbers for position in range(0, len(n) - 1, 2)
        ]
        return len(set(pairs)) < len(pairs)

    @property
    def is_trap(self) -> bool:
        """Return whether the obvious program, without parentheses, gives a different number."""
        return "(" in self.expression

    @property
    def is_test(self) -> bool:
        """Return whether a small multi-step instruction occurs only in evaluations. Its single
        operations are taught."""
        return len(self.steps) > 1 and zlib.crc32(str(self).encode()) % TEST_ONE_IN == 0


def is_heldout(number: int) -> bool:
    """Return whether a large number or a factor never occurs in training."""
    return zlib.crc32(str(number).encode()) % HELDOUT_ONE_IN == 0


INSTRUCTION_REGEX = re.compile(r"Take (\d+)((?:, (?:add|take away|multiply by) \d+)*)\.")


def parse_instruction(text: str) -> Instruction | None:
    """Return the first instruction in a text, or None."""
    found = INSTRUCTION_REGEX.search(text)
    if found is None:
        return None
    symbols = {operation.phrase: symbol for symbol, operation in OPERATIONS.items()}
    steps = re.findall(r", ([a-z ]+) (\d+)", found[2])
    return Instruction(int(found[1]), tuple(InstructionStep(symbols[a], int(n)) for a, n in steps))


# -- notes with instructions -------------------------------------------------------------------


@dataclass(frozen=True)
class Notebook:
    """Notebook: the instruction that each person keeps, and the new holders of moved notes."""

    instructions: Mapping[str, Instruction]
    new_holders: Mapping[str, str]

    def __or__(self, other: Notebook) -> Notebook:
        """Return the union of both notebooks, which share no names."""
        return Notebook(
            {**self.instructions, **other.instructions}, {**self.new_holders, **other.new_holders}
        )

    def get_holder(self, name: str) -> str:
        """Return the current holder of a person's note."""
        return self.new_holders.get(name, name)

    def get_instruction(self, name: str) -> Instruction:
        """Return the instruction in the note of a person."""
        return self.instructions[self.get_holder(name)]

    def render_module(self) -> str:
        """Return the source of the module with the function `note`, which programs import."""
        instructions = {name: str(instruction) for name, instruction in self.instructions.items()}
        return (
            f"KEPT = {instructions!r}\n"
            f"GIVEN = {dict(self.new_holders)!r}\n\n\n"
            "def note(name):\n"
            "    if name in GIVEN:\n"
            '        raise LookupError(f"{name} gave it to {GIVEN[name]}.")\n'
            "    return KEPT[name]\n"
        )


def make_moved_error(name: str, holder: str) -> str:
    """Return the error of a program that reads a note that was given away."""
    return f"LookupError: {name} gave it to {holder}."


def make_notebook(
    instructions: Sequence[Instruction], num_given: int, rng: random.Random, used: set[str]
) -> Notebook:
    """Make a notebook with one person per instruction, and `num_given` more persons who gave their
    notes away.

    Names are not in `used` before, and are added to it.
    """
    by_name = {draw_unused_name("person", rng, used): instruction for instruction in instructions}
    holders = list(by_name)
    return Notebook(
        by_name,
        {draw_unused_name("person", rng, used): rng.choice(holders) for _ in range(num_given)},
    )
