"""The dialect of a recipe for a model: its tokenizer, its chat template and what ends its turns."""

from __future__ import annotations

from pathlib import Path

from fieldcraft.config.recipe import Recipe
from fieldcraft.dialects import BaseDialect, get_dialect
from fieldcraft.engine.recommended import read_ends
from fieldcraft.train.model import load_tokenizer


def load_dialect(recipe: Recipe, folder: Path) -> BaseDialect:
    """The dialect of a recipe, bound to the tokenizer of the model in a folder.

    Raises UserError for a tokenizer that cannot be read, or that the dialect cannot be used with.
    """
    return get_dialect(
        recipe.dialect,
        load_tokenizer(folder),
        recipe.instruction,
        template=recipe.template,
        system=recipe.system,
        request=recipe.budget.fold.request if recipe.budget.fold is not None else None,
        ends=read_ends(folder),
    )
