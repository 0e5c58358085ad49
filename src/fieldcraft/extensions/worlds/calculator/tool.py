"""Calculator tool, whose operands are numbers or further calculations."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Literal

from fieldcraft.types import ToolError

Operation = Literal["add", "subtract", "multiply", "divide"]
MAX_DEPTH = 20
MAX_MAGNITUDE = 1e15  # larger results are no longer exact
OPERATIONS: Mapping[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
}


def calculator(operation: Operation, operands: list[Any]) -> str:
    """Calculate with numbers, or with the results of other calculations.

    Args:
        operation: add, subtract, multiply or divide; it is applied from left to right.
        operands: at least two, each a number or a calculation {"operation": ..., "operands": ...}.
    """
    value = _calculate(operation, operands, 0)
    return str(int(value)) if value == int(value) else str(round(value, 4))


def _calculate(operation: object, operands: object, depth: int) -> float:
    if not isinstance(operation, str) or operation not in OPERATIONS:
        raise ToolError(f"unknown operation {operation!r}: use {', '.join(OPERATIONS)}")
    if not isinstance(operands, Sequence) or isinstance(operands, str) or len(operands) < 2:
        raise ToolError("operands must be a list of at least two")
    if depth == MAX_DEPTH:
        raise ToolError(f"calculations may be nested at most {MAX_DEPTH} times")
    values = [_evaluate(each, depth) for each in operands]
    try:
        result = reduce(OPERATIONS[operation], values)
    except ZeroDivisionError as error:
        raise ToolError("division by zero") from error
    if abs(result) > MAX_MAGNITUDE or not math.isfinite(result):  # an int may exceed any float
        raise ToolError("the result is too large")
    return result


def _evaluate(operand: object, depth: int) -> float:
    match operand:
        case bool():
            pass
        case int() if abs(operand) <= MAX_MAGNITUDE:
            return operand
        case float() if abs(operand) <= MAX_MAGNITUDE:
            return operand
        case {"operation": operation, "operands": operands}:
            return _calculate(operation, operands, depth + 1)
    raise ToolError(
        'an operand must be a number or {"operation": ..., "operands": [...]},'
        f" not {str(operand)[:60]}"
    )
