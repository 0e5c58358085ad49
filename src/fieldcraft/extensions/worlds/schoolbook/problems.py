"""Word problems: their questions, programs, answers and tasks."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fieldcraft.extensions.worlds.schoolbook.kinds import (
    ENTRY,
    KINDS,
    NUM_TRAINED_WORDINGS,
    ProblemKind,
)
from fieldcraft.extensions.worlds.schoolbook.records import FIRST_NAMES, Entry, EntryState
from fieldcraft.types import KNOWN_ACCURACY_THRESHOLD, Task, ToolCall

ITEMS = (
    *("apples", "stamps", "marbles", "pencils", "shells", "cards", "buttons", "cookies", "tulips"),
    *("books", "stickers", "coins", "bricks", "candles", "lemons", "nails", "eggs", "beads"),
    *("postcards", "carrots", "balloons", "ribbons", "tiles", "muffins", "pebbles", "toys"),
)
THINGS = ("kite", "lamp", "jacket", "drum", "chair", "bicycle", "clock", "basket", "mirror")
IMPORT_LINE = "from records import read"


@dataclass(frozen=True)
class Problem:
    """A word problem without its wording.

    `numbers` has a number for each slot of the kind; that of ENTRY is in the records.
    """

    kind: ProblemKind
    size: int
    numbers: Mapping[str, int]
    entry: Entry | None = None

    @property
    def name(self) -> str:
        """Unique name: group, numbers of the question, and holder of the entry."""
        numbers = ",".join(str(self.numbers[slot]) for slot in self.kind.slots if slot != ENTRY)
        holder = f"@{self.entry.holder}" if self.entry else ""
        return f"{self.group}:{numbers}{holder}"

    @property
    def group(self) -> str:
        """Name of the problems that a model can solve equally well: of one kind and size."""
        return f"{self.kind.name} {self.size}"

    @property
    def is_void(self) -> bool:
        """Return whether it divides by zero, so that its question states the answer."""
        return self.entry is not None and self.entry.state is EntryState.ZERO

    @property
    def needs_parentheses(self) -> bool:
        return "(" in self.kind.expression and not self.kind.expression.startswith("m")

    @property
    def answer(self) -> int:
        if self.is_void:
            return self.numbers["a"]
        return self.kind.calculate(self.numbers).value

    @property
    def statement(self) -> str:
        """The calculation in the head, as a sentence."""
        statements = self.kind.calculate(self.numbers).statements
        return f"{', '.join(statements)}." if statements else f"It is {self.answer}."

    def render_expression(self, name: str | None = None, convert: bool = False) -> str:
        """Return the expression of a program. `name` replaces the name of the holder in the
        records, and `convert` makes the entry a number."""
        if self.entry is None:
            return self.kind.render(self.numbers)
        entry = f'read("{name or self.entry.holder}")'
        return self.kind.render({**self.numbers, ENTRY: f"int({entry})" if convert else entry})

    def make_call(self, name: str | None = None, convert: bool = False) -> ToolCall:
        """Return the program that prints the result; see `render_expression`."""
        return make_program(self.render_expression(name, convert), self.kind.is_recorded)

    def render_question(self, wording: int) -> str:
        """Return the question in one of the wordings, with the same names each time."""
        rng = random.Random(f"{self.name}:{wording}")
        name, other = rng.sample(FIRST_NAMES, 2)
        return self.kind.wordings[wording].format(
            name=name,
            other=other,
            item=rng.choice(ITEMS),
            thing=rng.choice(THINGS),
            holder=self.entry.holder if self.entry else "",
            **{slot: number for slot, number in self.numbers.items() if slot != ENTRY},
        )


def parse_problem(name: str, recorded: Mapping[str, Problem]) -> Problem:
    """Return the problem with a name; `recorded` has those with an entry. Raises ValueError for a
    name of no problem."""
    if name in recorded:
        return recorded[name]
    group, separator, numbers = name.partition(":")
    kind, _, size = group.partition(" ")
    if not separator or kind not in KINDS or KINDS[kind].is_recorded:
        raise ValueError(f"{name!r} is not a problem of this world")
    values = map(int, numbers.split(","))
    return Problem(KINDS[kind], int(size), dict(zip(KINDS[kind].slots, values, strict=True)))


def make_program(expression: str, is_recorded: bool) -> ToolCall:
    """Return the program that prints the value of an expression."""
    code = f"print({expression})"
    return ToolCall("python", {"code": f"{IMPORT_LINE}\n{code}" if is_recorded else code})


@dataclass(frozen=True)
class Ability:
    """Share of right answers of a model without a tool, by `Problem.group`; {} if unmeasured."""

    rates: Mapping[str, float] = field(default_factory=dict)

    def get_rate(self, problem: Problem) -> float:
        return self.rates.get(problem.group, 0.0)

    def is_known(self, problem: Problem) -> bool:
        """Return whether the model needs no tool."""
        return self.get_rate(problem) >= KNOWN_ACCURACY_THRESHOLD

    def count_optimal_calls(self, problem: Problem) -> int:
        """Return the minimum number of programs: none for what the model can do in its head, one
        more to learn the name under which an entry is listed."""
        if self.is_known(problem):
            return 0
        is_renamed = problem.entry is not None and problem.entry.state is EntryState.RENAMED
        return 1 + is_renamed

    def make_task(self, problem: Problem, split: str, wording: int) -> Task:
        meta: dict[str, Any] = {
            "split": split,
            "kind": problem.kind.name,
            "size": problem.size,
            "hops": problem.kind.hops,
            "problem": problem.name,
            "cluster": problem.name,
            "wording": wording,
            "known": self.is_known(problem),
            "recall": self.get_rate(problem),
            "calls_optimal": self.count_optimal_calls(problem),
        }
        if problem.entry is not None:
            meta["entry"] = str(problem.entry.state)
        identity = f"schoolbook:{problem.name}:{wording}"
        return Task(identity, problem.render_question(wording), (str(problem.answer),), meta)


def draw_trained_wording(rng: random.Random) -> int:
    return rng.randrange(NUM_TRAINED_WORDINGS)


def draw_reserved_wording(problem: Problem, rng: random.Random) -> int:
    return rng.randrange(NUM_TRAINED_WORDINGS, len(problem.kind.wordings))
