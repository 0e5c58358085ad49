"""Kinds of word problems: their expressions, their numbers and their wordings."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources

import yaml

from fieldcraft.extensions.worlds.schoolbook.expressions import EvaluatedExpression, calculate

NUM_TRAINED_WORDINGS = 6  # of eight; the others occur only in evaluations
ENTRY = "e"  # slot whose number is in the records, not in the question
# Digits of the largest number of a question; 0: neither a number nor a result exceeds MAX_SMALL.
SIZES = (0, 1, 2, 3)
MAX_SMALL = 12
SMALL_NUMBERS = range(2, 10)  # numbers of boxes, friends, days
TRIES_PER_PROBLEM = 2000  # draws of numbers, most of which do not divide evenly


@dataclass(frozen=True)
class ProblemKind:
    """A kind of problem.

    Args:
        name: name, also of its wordings.
        expression: expression of its slots, as in `{a} + {b}`.
        sizes: sizes with enough problems.
        small: slots with small numbers.
        minutes: slots with minutes of an hour.
    """

    name: str
    expression: str
    sizes: Sequence[int] = SIZES
    small: str = ""
    minutes: str = ""

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """Slots of the expression, in alphabetic order."""
        fields = (name for _, name, _, _ in string.Formatter().parse(self.expression) if name)
        return tuple(sorted(set(fields)))

    @property
    def is_recorded(self) -> bool:
        """Return whether a number is in the records."""
        return ENTRY in self.slots

    @property
    def hops(self) -> int:
        """Number of operations."""
        return max(1, sum(sign in "+-*/" for sign in self.expression.replace("//", "/")))

    @property
    def wordings(self) -> Sequence[str]:
        return _load_wordings()[self.name]

    def render(self, numbers: Mapping[str, int | str]) -> str:
        """Return the expression with numbers, or other texts, in its slots."""
        return self.expression.format_map(numbers)

    def calculate(self, numbers: Mapping[str, int]) -> EvaluatedExpression:
        return calculate(self._formula, numbers)

    @cached_property
    def _formula(self) -> str:
        return self.render({slot: slot for slot in self.slots})

    def draw_numbers(self, rng: random.Random, size: int) -> dict[str, int] | None:
        """Draw numbers of a size, whose results are exact and positive; None if none were
        found."""
        for _ in range(TRIES_PER_PROBLEM):
            numbers = {slot: rng.choice(self._get_range(slot, size)) for slot in self.slots}
            found = self.calculate(numbers)
            is_sound = found.is_exact and found.value > 0 and self._is_varied(numbers)
            if is_sound and get_size(numbers, found) == size:
                return numbers
        return None

    def _get_range(self, slot: str, size: int) -> range:
        if slot in self.small:
            return SMALL_NUMBERS
        if slot in self.minutes:
            return range(2, 60 if size > 1 else 10)
        return range(2, 10**size if size else MAX_SMALL + 1)

    def _is_varied(self, numbers: Mapping[str, int]) -> bool:
        """Return whether no two numbers are equal, unless the kind has many."""
        return len(set(numbers.values())) == len(numbers) or len(numbers) > 2


def get_size(numbers: Mapping[str, int], calculation: EvaluatedExpression) -> int:
    """Return the size of a problem, one of SIZES."""
    is_small = calculation.largest <= MAX_SMALL
    return 0 if is_small else len(str(max(numbers.values())))


KINDS: Mapping[str, ProblemKind] = {
    kind.name: kind
    for kind in (
        ProblemKind("gain", "{a} + {b}"),
        ProblemKind("loss", "{a} - {b}", (0, 2, 3)),
        ProblemKind("groups", "{a} * {b}", small="b"),
        ProblemKind("share", "{a} // {b}", (0, 2, 3), small="b"),
        ProblemKind("difference", "{a} - {b}", (0, 2, 3)),
        ProblemKind("higher", "max({a}, {b})", (0, 2, 3)),
        ProblemKind("lower", "min({a}, {b})", (0, 2, 3)),
        ProblemKind("weeks", "{a} * 7", (1, 2, 3)),
        ProblemKind("rate", "{a} * {b}", small="b"),
        ProblemKind("minutes", "{a} * 60 + {b}", (1, 2), small="a", minutes="b"),
        ProblemKind("change", "{c} - {a} * {b}", (0, 2, 3), small="b"),
        ProblemKind("earnings", "{a} * {b} - {c}", small="b"),
        ProblemKind("join_share", "({a} + {b}) // {c}", small="c"),
        ProblemKind("left_share", "({a} - {b}) // {c}", (0, 2, 3), small="c"),
        ProblemKind("unit_price", "{a} // {b} * {c}", (2, 3), small="bc"),
        ProblemKind("two_kinds", "{a} * {b} + {c} * {d}", (1, 2, 3), small="ac"),
        ProblemKind("trip", "{a} - {b} * {c} - {d}", (2, 3), small="b"),
        ProblemKind("packs", "({a} * {b} - {c}) // {d}", (1, 2, 3), small="ad"),
        ProblemKind("record_sum", "{e} + {a}", (1, 2, 3)),
        ProblemKind("record_product", "{e} * {a}", (1, 2, 3), small="a"),
        ProblemKind("record_share", "{a} // {e}", (2, 3), small="e"),
    )
}


@cache
def _load_wordings() -> Mapping[str, Sequence[str]]:
    text = (resources.files(__package__) / "wordings.yaml").read_text("utf-8")
    wordings: Mapping[str, Sequence[str]] = yaml.safe_load(text)
    return wordings
