"""Notes that programs can read: people keep instructions in a module beside the program."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fieldcraft.worlds.abacus.instructions import Instruction
from fieldcraft.worlds.naming import fresh_name

MODULE = "notes.py"


@dataclass(frozen=True)
class Notebook:
    """Notes of people: who keeps which instruction, and who gave a note away to whom."""

    kept: Mapping[str, Instruction]
    given: Mapping[str, str]

    def __or__(self, other: Notebook) -> Notebook:
        """Return both notebooks as one; no name is in both."""
        return Notebook({**self.kept, **other.kept}, {**self.given, **other.given})

    def holder(self, name: str) -> str:
        """Return who keeps the note of a person today."""
        return self.given.get(name, name)

    def instruction(self, name: str) -> Instruction:
        """Return the instruction in the note of a person."""
        return self.kept[self.holder(name)]

    def source(self) -> str:
        """Return the module with the function `note`, as programs import it."""
        kept = {name: str(instruction) for name, instruction in self.kept.items()}
        return (
            f"KEPT = {kept!r}\n"
            f"GIVEN = {dict(self.given)!r}\n\n\n"
            "def note(name):\n"
            "    if name in GIVEN:\n"
            '        raise LookupError(f"{name} gave it to {GIVEN[name]}.")\n'
            "    return KEPT[name]\n"
        )


def moved(name: str, holder: str) -> str:
    """Return the error of a program that reads a note which was given away."""
    return f"LookupError: {name} gave it to {holder}."


def new_notebook(
    instructions: Sequence[Instruction], given: int, rng: random.Random, used: set[str]
) -> Notebook:
    """Make a notebook with one person for each instruction, and `given` more who gave theirs away.

    Names are taken that are not in `used`, and are added to it.
    """
    kept = {fresh_name("person", rng, used): instruction for instruction in instructions}
    holders = list(kept)
    return Notebook(
        kept, {fresh_name("person", rng, used): rng.choice(holders) for _ in range(given)}
    )
