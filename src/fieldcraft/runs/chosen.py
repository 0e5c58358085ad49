"""The dialect that a run was given, where its recipe names none: `dialect.json` in its folder.

A run keeps it, also where the rules of the choice have changed since.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from fieldcraft.config.recipe import Recipe
from fieldcraft.records.files import write_json
from fieldcraft.records.reading import read_json
from fieldcraft.records.remedies import put_aside

FILE = "dialect.json"


class Chosen(BaseModel):
    """A dialect, and why it was chosen; "" where a recipe names it."""

    name: str
    why: str = ""

    @property
    def sentence(self) -> str:
        """Sentence that is printed at the start."""
        return f"dialect: {self.name}, because {self.why}; dialect=NAME changes it"


def record_dialect(chosen: Chosen, run: Path) -> None:
    """Write a choice into the folder of a run."""
    write_json(run / FILE, chosen.model_dump())


def recorded_dialect(recipe: Recipe, run: Path) -> Chosen | None:
    """Return the dialect that was chosen when a run began; None where its recipe names one, or it
    has not begun. Raises UserError for a file that is damaged."""
    file = run / FILE
    if recipe.dialect is not None or not file.exists():
        return None
    return Chosen(**read_json(file, Chosen, f"{put_aside(file)} to choose again"))


def with_recorded(recipe: Recipe, run: Path) -> Recipe:
    """Return the recipe of a run with the dialect that was chosen for it, if one was. Raises
    UserError as `recorded_dialect` does."""
    chosen = recorded_dialect(recipe, run)
    return recipe.model_copy(update={"dialect": chosen.name}) if chosen else recipe
