"""Nested calculations: their values, their wordings and their tool calls."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fieldcraft.extensions.worlds.calculator.tool import OPERATIONS

MAX_OPERATIONS = 4
MAX_VALUE = 10**12
NUMBERS = (range(2, 100), range(100, 1000), range(1000, 10_000))
FACTORS = range(2, 100)
# Wordings of an operation with its two operands, of a question with its calculation.
PHRASES = {
    "add": ("the sum of {0} and {1}", "the total of {0} and {1}"),
    "subtract": ("the difference between {0} and {1}", "the result of taking {1} from {0}"),
    "multiply": ("the product of {0} and {1}", "the result of multiplying {0} by {1}"),
    "divide": ("the quotient of {0} and {1}", "the result of dividing {0} by {1}"),
}
SHORT_PHRASES = {  # of two numbers, which cannot be misread
    "add": "{0} plus {1}",
    "subtract": "{0} minus {1}",
    "multiply": "{0} times {1}",
    "divide": "{0} divided by {1}",
}
QUESTIONS = (
    "What is {0}?",
    "Calculate {0}.",
    "How much is {0}?",
    "Compute {0}.",
    "Find {0}.",
    "What do you get for {0}?",
    "Work out {0}.",
    "Give me {0}.",
    "Please evaluate {0}.",
    "I need to know {0}. What is it?",
)
NUM_TRAINED_QUESTIONS = 8  # the others occur only in evaluations
SHORT_SHARE = 0.5  # fraction of the operations on two numbers with a short wording


@dataclass(frozen=True)
class Calculation:
    """An operation on two numbers or calculations."""

    operation: str
    left: Calculation | int
    right: Calculation | int

    @property
    def value(self) -> int:
        """Value, which is exact if `is_exact`."""
        left, right = get_value(self.left), get_value(self.right)
        if self.operation == "divide":
            return left // right if right else 0
        return int(OPERATIONS[self.operation](left, right))

    @property
    def is_exact(self) -> bool:
        """Return whether no division has a remainder, no value is negative or too large."""
        if not all(node.is_exact for node in self.children):
            return False
        left, right = get_value(self.left), get_value(self.right)
        if self.operation == "divide":
            return right > 1 and left % right == 0
        return 0 <= self.value <= MAX_VALUE and (self.operation != "subtract" or left > right)

    @property
    def children(self) -> list[Calculation]:
        return [node for node in (self.left, self.right) if isinstance(node, Calculation)]

    @property
    def num_operations(self) -> int:
        return 1 + sum(node.num_operations for node in self.children)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the tool."""
        operands = [
            node.arguments if isinstance(node, Calculation) else node
            for node in (self.left, self.right)
        ]
        return {"operation": self.operation, "operands": operands}

    def render(self, rng: random.Random) -> str:
        """Return the calculation in words; `rng` selects the wordings."""
        operands = [
            node.render(rng) if isinstance(node, Calculation) else str(node)
            for node in (self.left, self.right)
        ]
        if not self.children and rng.random() < SHORT_SHARE:
            return SHORT_PHRASES[self.operation].format(*operands)
        phrase = rng.choice(PHRASES[self.operation])
        if self.children:  # so that "and" joins whole operands
            phrase = phrase.replace("{0} and", "{0}, and")
        return phrase.format(*operands)

    def __str__(self) -> str:
        return f"{self.operation}({self.left},{self.right})"


def get_value(node: Calculation | int) -> int:
    return node.value if isinstance(node, Calculation) else node


def draw_calculation(rng: random.Random, operations: int) -> Calculation:
    """Draw an exact calculation with a number of operations."""
    while True:
        drawn = _draw(rng, operations)
        if drawn.is_exact:
            return drawn


def _draw(rng: random.Random, operations: int) -> Calculation:
    operation = rng.choice([*OPERATIONS])
    left_count = rng.randint(0, operations - 1)
    left = _draw_operand(rng, left_count, rng.choice(NUMBERS))
    factors = FACTORS if operation in ("multiply", "divide") else rng.choice(NUMBERS)
    right = _draw_operand(rng, operations - 1 - left_count, factors)
    if operation == "divide" and isinstance(left, int):
        left = get_value(right) * rng.choice(FACTORS)  # most others leave a remainder
    elif operation == "divide" and isinstance(right, int):
        right = _draw_divisor(rng, get_value(left), right)
    return Calculation(operation, left, right)


def _draw_divisor(rng: random.Random, value: int, default: int) -> int:
    divisors = [each for each in FACTORS if value % each == 0]
    return rng.choice(divisors) if divisors else default


def _draw_operand(rng: random.Random, operations: int, numbers: Sequence[int]) -> Calculation | int:
    return _draw(rng, operations) if operations else rng.choice(numbers)
