"""Records that programs read: numbers of people, some as text, under another name, or 0.

Programs import them from the module `records`. Three entries cannot be used as they are: a number
that is text, a name that is listed differently, and a 0 by which nothing can be divided.
"""

from __future__ import annotations

import operator
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

RECORDS_MODULE = "records.py"
HELDOUT_ONE_IN = 4  # one in so many people occurs only in evaluations
FIRST_NAMES = (
    *("Ada", "Ben", "Cara", "Dan", "Ella", "Finn", "Greta", "Hugo", "Ines", "Jonas", "Kira"),
    *("Leo", "Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tara", "Udo", "Vera", "Will", "Yara"),
    *("Zoe", "Anna", "Carl", "Emma", "Felix", "Ida", "Jack", "Lara", "Max", "Nina", "Oscar"),
    *("Pia", "Ruth", "Simon", "Tom", "Ulla", "Viktor", "Alma", "Bruno", "Clara", "David"),
)
LAST_NAMES = (
    *("Abel", "Berg", "Cole", "Dahl", "Engel", "Frost", "Gray", "Hill", "Iverson", "Jung"),
    *("Keller", "Lind", "Moss", "North", "Olsen", "Page", "Reed", "Stone", "Turner", "Vogel"),
    *("Wolf", "Young", "Zimmer", "Adler", "Brook", "Carter", "Dunn", "Ebert", "Fisher", "Grove"),
    *("Hart", "Irwin", "Jansen", "Klein", "Lowe", "Marsh", "Nash", "Otto", "Price", "Quinn"),
)


class EntryState(StrEnum):
    """State of a recorded number."""

    NUMBER = "number"
    TEXT = "text"  # a string: it must be converted
    RENAMED = "renamed"  # the person is listed under another name, which the error states
    ZERO = "zero"  # a division by it fails


def list_holders(heldout: bool) -> list[str]:
    """Return the full names of people in training, or of those reserved for evaluations."""
    names = (f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES)
    return [name for name in names if is_heldout_name(name) == heldout]


def is_heldout_name(name: str) -> bool:
    return zlib.crc32(name.encode()) % HELDOUT_ONE_IN == 0


@dataclass(frozen=True)
class Entry:
    """The entry of a person: a number, as it is recorded, and the name under which it is listed."""

    holder: str
    value: int
    state: EntryState
    listed_as: str

    @property
    def stored(self) -> int | str:
        """Return the object that programs read."""
        return str(self.value) if self.state is EntryState.TEXT else self.value


@dataclass(frozen=True)
class Records:
    """All entries, by the name of their holder."""

    entries: Mapping[str, Entry]

    def render_module(self) -> str:
        """Return the source of the module `records`."""
        listed = {entry.listed_as: entry.stored for entry in self.entries.values()}
        renamed = {
            entry.holder: entry.listed_as
            for entry in self.entries.values()
            if entry.state is EntryState.RENAMED
        }
        return (
            f"LISTED = {listed!r}\n"
            f"RENAMED = {renamed!r}\n\n\n"
            "def read(name):\n"
            "    if name in RENAMED:\n"
            '        raise LookupError(f"{name} is listed as {RENAMED[name]}.")\n'
            "    if name not in LISTED:\n"
            '        raise LookupError(f"there is no {name}.")\n'
            "    return LISTED[name]\n"
        )


def make_renamed_error(entry: Entry) -> str:
    """Return the error of a program that reads an entry listed under another name."""
    return f"LookupError: {entry.holder} is listed as {entry.listed_as}."


def _describe_failure(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> str:
    """Return the last line of the error of an operation, which differs between versions."""
    try:
        operation(left, right)
    except (TypeError, ZeroDivisionError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"{operation} does not fail")


TEXT_ERROR = _describe_failure(operator.add, "1", 1)
ZERO_ERROR = _describe_failure(operator.floordiv, 1, 0)


def iterate_names(rng: random.Random, heldout: bool) -> Iterator[str]:
    """Yield the names of one side in a random order, each once."""
    yield from rng.sample(names := list_holders(heldout), len(names))
