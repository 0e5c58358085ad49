"""Arithmetic expressions of whole numbers: their value, and each operation as a statement."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

OPERATORS: Mapping[type[ast.operator], tuple[str, Callable[[int, int], int]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.FloorDiv: ("//", operator.floordiv),
}
FUNCTIONS: Mapping[str, Callable[[Sequence[int]], int]] = {"max": max, "min": min}
DIVISION_SIGN = "/"  # in statements
EMPTY: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class EvaluatedExpression:
    """Value of an expression, with its operations in the order in which they are computed.

    `largest` is the largest of its numbers and results. `is_exact`: every division is without
    remainder, and no result is negative.
    """

    value: int
    largest: int
    statements: tuple[str, ...]
    is_exact: bool


@dataclass
class _Evaluator:
    numbers: Mapping[str, int]
    statements: list[str] = field(default_factory=list)
    is_exact: bool = True
    largest: int = 0

    def evaluate(self, node: ast.expr) -> int:
        value = self._evaluate(node)
        self.largest = max(self.largest, value)
        return value

    def _evaluate(self, node: ast.expr) -> int:
        match node:
            case ast.Constant(int(value)):
                return value
            case ast.Name(name):
                return self.numbers[name]
            case ast.BinOp(left, sign, right):
                return self._apply(self.evaluate(left), OPERATORS[type(sign)], self.evaluate(right))
            case ast.Call(ast.Name(name), arguments):
                return FUNCTIONS[name]([self.evaluate(each) for each in arguments])
        raise ValueError(f"{ast.dump(node)} is not part of an expression")

    def _apply(
        self, left: int, operation: tuple[str, Callable[[int, int], int]], right: int
    ) -> int:
        sign, function = operation
        value = function(left, right)
        is_division = sign == "//"
        self.is_exact &= value >= 0 and not (is_division and left % right)
        printed_sign = DIVISION_SIGN if is_division else sign
        self.statements.append(f"{left} {printed_sign} {right} = {value}")
        return value


def calculate(expression: str, numbers: Mapping[str, int] = EMPTY) -> EvaluatedExpression:
    """Calculate an expression of whole numbers and names with +, -, *, //, max and min.

    Raises ZeroDivisionError, KeyError for a name without a number, and ValueError for any other
    expression.
    """
    evaluator = _Evaluator(numbers)
    value = evaluator.evaluate(_parse(expression))
    return EvaluatedExpression(
        value, evaluator.largest, tuple(evaluator.statements), evaluator.is_exact
    )


@lru_cache(maxsize=256)
def _parse(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body
