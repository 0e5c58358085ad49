"""Notes that programs can read: instructions that people keep, in an importable module."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fieldcraft.extensions.worlds.abacus.instructions import Instruction
from fieldcraft.extensions.worlds.names import draw_unused_name

NOTES_MODULE = "notes.py"


@dataclass(frozen=True)
class Notebook:
    """Notebook: the instruction that each person keeps, and the new holders of moved notes."""

    instructions: Mapping[str, Instruction]
    new_holders: Mapping[str, str]

    def __or__(self, other: Notebook) -> Notebook:
        """Return the union of both notebooks, which share no names."""
        return Notebook(
            {**self.instructions, **other.instructions}, {**self.new_holders, **other.new_holders}
        )

    def get_holder(self, name: str) -> str:
        """Return the current holder of a person's note."""
        return self.new_holders.get(name, name)

    def get_instruction(self, name: str) -> Instruction:
        """Return the instruction in the note of a person."""
        return self.instructions[self.get_holder(name)]

    def render_module(self) -> str:
        """Return the source of the module with the function `note`, which programs import."""
        instructions = {name: str(instruction) for name, instruction in self.instructions.items()}
        return (
            f"KEPT = {instructions!r}\n"
            f"GIVEN = {dict(self.new_holders)!r}\n\n\n"
            "def note(name):\n"
            "    if name in GIVEN:\n"
            '        raise LookupError(f"{name} gave it to {GIVEN[name]}.")\n'
            "    return KEPT[name]\n"
        )


def make_moved_error(name: str, holder: str) -> str:
    """Return the error of a program that reads a note that was given away."""
    return f"LookupError: {name} gave it to {holder}."


def make_notebook(
    instructions: Sequence[Instruction], num_given: int, rng: random.Random, used: set[str]
) -> Notebook:
    """Make a notebook with one person per instruction, and `num_given` more persons who gave their
    notes away.

    Names are not in `used` before, and are added to it.
    """
    by_name = {draw_unused_name("person", rng, used): instruction for instruction in instructions}
    holders = list(by_name)
    return Notebook(
        by_name,
        {draw_unused_name("person", rng, used): rng.choice(holders) for _ in range(num_given)},
    )
