"""The dialect that a run was given, where its recipe names none: `dialect.json` in its folder.

A run keeps it, also where the rules of the choice have changed since.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from fieldcraft.config.recipe import Recipe
from fieldcraft.records.files import write_json
from fieldcraft.records.reading import read_json
from fieldcraft.records.remedies import advise_renaming

DIALECT_FILE = "dialect.json"


class DialectChoice(BaseModel):
    """A dialect, and why it was chosen; "" where a recipe names it."""

    name: str
    why: str = ""

    @property
    def message(self) -> str:
        """Sentence that is printed at the start."""
        return f"dialect: {self.name}, because {self.why}; dialect=NAME changes it"


def write_dialect_choice(choice: DialectChoice, run: Path) -> None:
    """Write a choice into the folder of a run."""
    write_json(run / DIALECT_FILE, choice.model_dump())


def read_dialect_choice(recipe: Recipe, run: Path) -> DialectChoice | None:
    """Return the dialect that was chosen when a run began; None where its recipe names one, or it
    has not begun. Raises UserError for a file that is damaged."""
    file = run / DIALECT_FILE
    if recipe.dialect is not None or not file.exists():
        return None
    return DialectChoice(
        **read_json(file, DialectChoice, f"{advise_renaming(file)} to choose again")
    )


def with_recorded_dialect(recipe: Recipe, run: Path) -> Recipe:
    """Return the recipe of a run with the dialect that was chosen for it, if one was. Raises
    UserError as `read_dialect_choice` does."""
    choice = read_dialect_choice(recipe, run)
    return recipe.model_copy(update={"dialect": choice.name}) if choice else recipe
