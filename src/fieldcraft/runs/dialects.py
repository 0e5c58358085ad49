"""The dialect of a recipe for a model: its tokenizer, its chat template and what ends its turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldcraft.config.recipe import Recipe
from fieldcraft.dialects import BaseDialect, get_dialect, part_problems, round_trip_problems
from fieldcraft.engine.recommended import read_ends
from fieldcraft.train.model import load_config, load_tokenizer
from fieldcraft.types import UserError

REMEDY = "choose a model whose tokenizer keeps every text, as byte-level ones do"


def load_dialect(recipe: Recipe, folder: Path) -> BaseDialect:
    """The dialect of a recipe, bound to the tokenizer of the model in a folder.

    Raises UserError for a tokenizer that cannot be read, that has more tokens than the model, that
    the dialect cannot be used with, or that changes texts.
    """
    tokenizer = load_tokenizer(folder)
    _require_tokens(tokenizer, folder)
    dialect = get_dialect(
        recipe.dialect,
        tokenizer,
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


def require_any_dialect(folder: Path) -> None:
    """Raises UserError for a model of which nothing says how it acts, if its tokenizer is one that
    `load_dialect` refuses for every dialect."""
    tokenizer = load_tokenizer(folder)
    _require_tokens(tokenizer, folder)
    if problems := part_problems(tokenizer):
        raise UserError(f"{problems[0][:-1]}, so no dialect can be used with {folder}: {REMEDY}.")


def _require_tokens(tokenizer: Any, folder: Path) -> None:
    """Raises UserError for a tokenizer with tokens that the model does not know."""
    tokens, known = len(tokenizer), load_config(folder).get_text_config().vocab_size
    if tokens > known:
        raise UserError(
            f"the tokenizer of {folder} has {tokens} tokens and the model only {known}: take the"
            " tokenizer that belongs to the model."
        )
