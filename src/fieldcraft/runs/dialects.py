"""The dialect of a recipe for a model: its tokenizer, its chat template and what ends its turns."""

from __future__ import annotations

from pathlib import Path

from fieldcraft.config.recipe import Recipe
from fieldcraft.dialects import BaseDialect, get_dialect, part_problems, round_trip_problems
from fieldcraft.engine.recommended import read_ends
from fieldcraft.train.model import load_tokenizer
from fieldcraft.types import UserError

REMEDY = "choose a model whose tokenizer keeps every text, as byte-level ones do"


def load_dialect(recipe: Recipe, folder: Path) -> BaseDialect:
    """The dialect of a recipe, bound to the tokenizer of the model in a folder.

    Raises UserError for a tokenizer that cannot be read, that the dialect cannot be used with, or
    that changes texts.
    """
    dialect = get_dialect(
        recipe.dialect,
        load_tokenizer(folder),
        recipe.instruction,
        template=recipe.template,
        system=recipe.system,
        request=recipe.budget.fold.request if recipe.budget.fold is not None else None,
        ends=read_ends(folder),
        day=recipe.date,
    )
    # Environments of others speak through the chat template alone, which is encoded in parts, too.
    others = recipe.environment.of_others
    if problems := part_problems(dialect.tokenizer) if others else round_trip_problems(dialect):
        raise UserError(
            f"{problems[0][:-1]}, so the dialect '{dialect.name}' cannot be used with {folder}:"
            f" {REMEDY}."
        )
    return dialect
