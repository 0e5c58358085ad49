"""Automatically chosen dialect of a run whose recipe names none: `dialect.json` in its folder.

A run keeps its dialect even if the rules of the choice change in a later version.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from fieldcraft.config.recipe import Recipe
from fieldcraft.records.files import write_json
from fieldcraft.records.reading import advise_renaming, read_json

DIALECT_FILE = "dialect.json"
AUTO_DIALECT = "auto"  # follows the chat template if it writes calls in a known format


class DialectChoice(BaseModel):
    """Dialect and the reason for its choice; "" if the recipe names it."""

    name: str
    why: str = ""

    @property
    def message(self) -> str:
        """Message printed at the start."""
        return f"dialect: {self.name}, because {self.why}; dialect=NAME changes it"


def write_dialect_choice(choice: DialectChoice, run: Path) -> None:
    """Write a choice to the folder of a run."""
    write_json(run / DIALECT_FILE, choice.model_dump())


def read_dialect_choice(recipe: Recipe, run: Path) -> DialectChoice | None:
    """Return the dialect chosen at the start of a run; None if its recipe names another one than
    `auto` or the run has not started. Raises UserError for a damaged file."""
    file = run / DIALECT_FILE
    if recipe.dialect not in (None, AUTO_DIALECT) or not file.exists():
        return None
    return DialectChoice(
        **read_json(file, DialectChoice, f"{advise_renaming(file)} to choose again")
    )


def with_recorded_dialect(recipe: Recipe, run: Path) -> Recipe:
    """Return the recipe of a run with its chosen dialect, if any. Raises UserError like
    `read_dialect_choice`."""
    choice = read_dialect_choice(recipe, run)
    return recipe.model_copy(update={"dialect": choice.name}) if choice else recipe
