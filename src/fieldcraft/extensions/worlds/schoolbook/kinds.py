"""Kinds of word problems: their expressions, their numbers and their wordings."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources

import yaml

from fieldcraft.extensions.worlds.schoolbook.expressions import Calculation, calculate

NUM_TRAINED_WORDINGS = 6  # of eight; the others occur only in evaluations
ENTRY = "e"  # slot whose number is in the records, not in the question
SIZES = (1, 2, 3)  # digits of the largest numbers
MAX_NUMBER = 999
FEW = range(2, 10)  # numbers of boxes, friends, days
TRIES_PER_PROBLEM = 2000  # draws of numbers, most of which do not divide evenly


@dataclass(frozen=True)
class ProblemKind:
    """A kind of problem.

    Args:
        name: name, also of its wordings.
        expression: expression of its slots, as in `{a} + {b}`.
        few: slots with small numbers; the others have as many digits as the problem.
        totals: slots from which others are taken, whose numbers may be larger.
        minutes: slots with minutes of an hour.
    """

    name: str
    expression: str
    few: str = ""
    totals: str = ""
    minutes: str = ""

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """Slots of the expression, in alphabetic order."""
        fields = (name for _, name, _, _ in string.Formatter().parse(self.expression) if name)
        return tuple(sorted(set(fields)))

    @property
    def sizes(self) -> Sequence[int]:
        """Sizes of its problems; minutes of an hour have at most two digits."""
        return SIZES[:-1] if self.minutes else SIZES

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

    def calculate(self, numbers: Mapping[str, int]) -> Calculation:
        return calculate(self._formula, numbers)

    @cached_property
    def _formula(self) -> str:
        return self.render({slot: slot for slot in self.slots})

    def draw_numbers(self, rng: random.Random, size: int) -> dict[str, int] | None:
        """Draw numbers with at most `size` digits, whose results are exact, positive and of less
        than seven digits; None if none were found."""
        for _ in range(TRIES_PER_PROBLEM):
            numbers = {slot: rng.choice(self._get_range(slot, size)) for slot in self.slots}
            found = self.calculate(numbers)
            if found.is_exact and 0 < found.value < 10**6 and self._is_worth_asking(numbers):
                return numbers
        return None

    def _get_range(self, slot: str, size: int) -> range:
        if slot in self.few:
            return FEW
        if slot in self.minutes:
            return range(max(2, 10 ** (size - 1)), min(10**size, 60))
        if slot in self.totals:
            return range(2, min(10 ** (size + 1), MAX_NUMBER + 1))
        if self.totals and size == SIZES[-1]:
            return range(100, 300)  # the total has three digits, too
        return range(max(2, 10 ** (size - 1)), 10**size)

    def _is_worth_asking(self, numbers: Mapping[str, int]) -> bool:
        """Return whether no two numbers are equal, unless the kind has many."""
        return len(set(numbers.values())) == len(numbers) or len(numbers) > 2


KINDS: Mapping[str, ProblemKind] = {
    kind.name: kind
    for kind in (
        ProblemKind("gain", "{a} + {b}"),
        ProblemKind("loss", "{a} - {b}"),
        ProblemKind("groups", "{a} * {b}", few="b"),
        ProblemKind("share", "{a} // {b}", few="b"),
        ProblemKind("difference", "{a} - {b}"),
        ProblemKind("higher", "max({a}, {b})"),
        ProblemKind("lower", "min({a}, {b})"),
        ProblemKind("weeks", "{a} * 7"),
        ProblemKind("rate", "{a} * {b}", few="b"),
        ProblemKind("minutes", "{a} * 60 + {b}", few="a", minutes="b"),
        ProblemKind("change", "{c} - {a} * {b}", few="b", totals="c"),
        ProblemKind("earnings", "{a} * {b} - {c}", few="b"),
        ProblemKind("join_share", "({a} + {b}) // {c}", few="c"),
        ProblemKind("left_share", "({a} - {b}) // {c}", few="c", totals="a"),
        ProblemKind("unit_price", "{a} // {b} * {c}", few="bc"),
        ProblemKind("two_kinds", "{a} * {b} + {c} * {d}", few="ac"),
        ProblemKind("trip", "{a} - {b} * {c} - {d}", few="b", totals="a"),
        ProblemKind("packs", "({a} * {b} - {c}) // {d}", few="ad"),
        ProblemKind("record_sum", "{e} + {a}"),
        ProblemKind("record_product", "{e} * {a}", few="a"),
        ProblemKind("record_share", "{a} // {e}", few="e"),
    )
}


@cache
def _load_wordings() -> Mapping[str, Sequence[str]]:
    text = (resources.files(__package__) / "wordings.yaml").read_text("utf-8")
    wordings: Mapping[str, Sequence[str]] = yaml.safe_load(text)
    return wordings
