"""Nested calculations in words, and the tool that calculates them."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.extensions.worlds.calculator.calculations import (
    NUM_TRAINED_QUESTIONS,
    QUESTIONS,
    Calculation,
    draw_calculation,
)
from fieldcraft.extensions.worlds.calculator.tool import calculator
from fieldcraft.extensions.worlds.calculator.world import SPLITS, CalculatorWorld, make_steps
from fieldcraft.tools.base import tool
from fieldcraft.types import Answer, ArgumentError, Observation, ToolCall, ToolError

NESTED = Calculation("add", Calculation("multiply", 987, 654), Calculation("divide", 48, 12))


def call(**arguments: Any) -> str:
    return asyncio.run(tool(calculator)(**arguments))


def test_calculations_worked_out_by_hand() -> None:
    assert NESTED.value == 987 * 654 + 4
    assert call(**NESTED.arguments) == str(987 * 654 + 4)
    assert call(operation="subtract", operands=[20, 3, 4]) == "13"
    assert call(operation="divide", operands=[7, 2]) == "3.5"
    assert call(operation="divide", operands=[2, 3]) == "0.6667"
    words = NESTED.render(random.Random(1))
    assert "987" in words
    assert ", and " in words


@given(st.integers(0, 10**6), st.integers(1, 5))
def test_the_tool_agrees_with_the_gold_answer(seed: int, operations: int) -> None:
    rng = random.Random(seed)
    calculation = draw_calculation(rng, operations)
    assert calculation.num_operations == operations
    assert call(**calculation.arguments) == str(calculation.value)
    numbers = [word.strip("?,.") for word in calculation.render(rng).split()]
    assert sum(word.isdigit() for word in numbers) == operations + 1


@pytest.mark.parametrize(
    ("operands", "reason"),
    [
        ([1], "at least two"),
        ([1, "2"], "an operand must be a number or"),
        ([1, True], "an operand must be a number or"),
        ([1, None], "an operand must be a number or"),
        ([1, {"operation": "add"}], "an operand must be a number or"),
        ([1, {"operation": "power", "operands": [2, 3]}], "unknown operation 'power'"),
        ([1, {"operation": ["add"], "operands": [2, 3]}], "unknown operation"),
        ([1, {"operation": "add", "operands": "23"}], "must be a list"),
        ([1, {"operation": "divide", "operands": [2, 0]}], "division by zero"),
        ([1e300, 1e300], "an operand must be"),
        ([10**400, 2], "an operand must be"),
        ([1e10, {"operation": "multiply", "operands": [1e10, 1e10]}], "too large"),
        ([1, {"operation": "multiply", "operands": [10**15] * 30}], "too large"),
        ([float("nan"), 1], "an operand must be"),
    ],
)
def test_errors_say_what_is_wrong(operands: list[Any], reason: str) -> None:
    with pytest.raises(ToolError, match=reason):
        call(operation="add", operands=operands)


def test_deep_calls_and_unknown_operations_are_refused() -> None:
    nested: Any = 1
    for _ in range(30):
        nested = {"operation": "add", "operands": [nested, 1]}
    with pytest.raises(ToolError, match="nested at most 20 times"):
        call(operation="add", operands=[nested, 1])
    with pytest.raises(ArgumentError, match="operation"):
        call(operation="power", operands=[2, 3])


def test_splits_are_disjoint_from_training() -> None:
    world = CalculatorWorld(0)
    trained = world.training_questions(300)
    shown = [task for task, _ in world.demonstrations("demonstrations", 100)]
    tasks = {split: world.evaluation_questions({split: 30}) for split in SPLITS}
    assert {len(found) for found in tasks.values()} == {30}
    evaluated = {task.id for split in SPLITS if split != "train" for task in tasks[split]}
    assert evaluated.isdisjoint(task.id for task in (*trained, *shown))
    assert {task.id for task in trained}.isdisjoint(task.id for task in shown)
    assert {task.meta["hops"] for task in tasks["deeper"]} == {5}
    reserved = [each.partition("{0}")[0] for each in QUESTIONS[NUM_TRAINED_QUESTIONS:]]
    assert all(task.question.startswith(tuple(reserved)) for task in tasks["wordings"])
    assert not any(task.question.startswith(tuple(reserved)) for task in (*trained, *shown))
    assert trained == CalculatorWorld(0).training_questions(300)
    assert trained != CalculatorWorld(1).training_questions(300)


def test_a_demonstration_is_one_nested_call() -> None:
    [move, seen, answer] = make_steps(NESTED)
    assert move == ToolCall("calculator", NESTED.arguments)
    assert (seen, answer) == (Observation("645502"), Answer("645502"))
    dialect = make_dialect("hermes", tiny_tokenizer(), "")
    [(task, steps)] = CalculatorWorld(0).demonstrations("demonstrations", 1)
    found = DemonstrationEncoder(dialect, [tool(calculator).schema]).encode(task, steps)
    assert found.answer == task.answers[0]
    assert found.well_formed
