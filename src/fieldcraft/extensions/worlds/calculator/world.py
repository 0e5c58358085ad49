"""World class of the calculator, which a recipe can name."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import ClassVar

from fieldcraft.data.world import Demonstration, World
from fieldcraft.extensions.worlds.calculator.calculations import (
    MAX_OPERATIONS,
    NUM_TRAINED_QUESTIONS,
    QUESTIONS,
    Calculation,
    draw_calculation,
)
from fieldcraft.types import Answer, DemoStep, Observation, Task, ToolCall

SPLITS = {
    "heldout": "Calculations that do not occur in training",
    "wordings": "The same in wordings never trained",
    "deeper": "One operation more than in training",
    "train": "Questions of training",
}
TOOL = "calculator"
DATASET_SIZE = 2000  # examples, unless a recipe requests fewer
HELDOUT_ONE_IN = 5
DEMONSTRABLE_ONE_IN = 3  # the other calculations of training are for reinforcement learning


class CalculatorWorld(World):
    """World of nested calculations in words. Each one takes one call of the tool `calculator`."""

    splits: ClassVar[Mapping[str, str]] = SPLITS
    datasets: ClassVar[Sequence[str]] = ("demonstrations",)

    def passages(self) -> list[dict[str, str]]:
        """Return no passages, because this world has no search."""
        return []

    def training_questions(self, count: int) -> list[Task]:
        return self._make_tasks("train", count)

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        return [task for split in SPLITS for task in self._make_tasks(split, splits.get(split, 0))]

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        """Return distinct questions, each with one call and its result as the answer."""
        rng = random.Random(f"{dataset}:{self.seed}")
        drawn = _iterate_distinct(rng, MAX_OPERATIONS, heldout=False)
        wanted = (each for each in drawn if _is_demonstrable(each))
        size = DATASET_SIZE if count is None else count
        return [(_make_task(each, "train", rng), make_steps(each)) for each in islice(wanted, size)]

    def _make_tasks(self, split: str, count: int) -> list[Task]:
        rng, is_train = random.Random(f"{split}:{self.seed}"), split == "train"
        operations = MAX_OPERATIONS + (split == "deeper")
        drawn = _iterate_distinct(rng, operations, heldout=not is_train)
        wanted = (each for each in drawn if _fits(each, split))
        return [_make_task(each, split, rng) for each in islice(wanted, count)]


def _fits(calculation: Calculation, split: str) -> bool:
    if split == "train":
        return not _is_demonstrable(calculation)
    return split != "deeper" or calculation.num_operations > MAX_OPERATIONS


def _iterate_distinct(
    rng: random.Random, max_operations: int, *, heldout: bool
) -> Iterator[Calculation]:
    """Yield an infinite sequence of distinct calculations of one side."""
    found: set[str] = set()
    while True:
        calculation = draw_calculation(rng, rng.randint(1, max_operations))
        name = str(calculation)
        if name not in found and (zlib.crc32(name.encode()) % HELDOUT_ONE_IN == 0) == heldout:
            found.add(name)
            yield calculation


def _is_demonstrable(calculation: Calculation) -> bool:
    return zlib.crc32(f"shown:{calculation}".encode()) % DEMONSTRABLE_ONE_IN == 0


def _make_task(calculation: Calculation, split: str, rng: random.Random) -> Task:
    questions = QUESTIONS[NUM_TRAINED_QUESTIONS:] if split == "wordings" else QUESTIONS
    questions = questions[: NUM_TRAINED_QUESTIONS if split != "wordings" else None]
    meta = {
        "split": split,
        "hops": calculation.num_operations,
        "known": False,
        "calls_optimal": 1,
        "calculation": str(calculation),
    }
    question = rng.choice(questions).format(calculation.render(rng))
    return Task(f"calculator:{calculation}", question, (str(calculation.value),), meta)


def make_steps(calculation: Calculation) -> list[DemoStep]:
    """Return the call of a calculation, its result, and the answer."""
    result = str(calculation.value)
    return [ToolCall(TOOL, calculation.arguments), Observation(result), Answer(result)]
