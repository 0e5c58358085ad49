"""Dialect of a recipe for a model, from its tokenizer, chat template and end-of-turn tokens.

If a recipe names no dialect, it is chosen here according to the model.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fieldcraft.config.recipe import Recipe
from fieldcraft.dialects import (
    BaseDialect,
    check_part_encoding,
    check_round_trip,
    make_dialect,
    resolve_dialect,
)
from fieldcraft.dialects.chat_template import renders_calls, require_template_for_program
from fieldcraft.dialects.hermes import HermesDialect
from fieldcraft.engine.generation_config import read_eos_token_ids
from fieldcraft.runs.dialect_choice import AUTO_DIALECT, DialectChoice
from fieldcraft.terminal.console import print_line
from fieldcraft.train.model import load_config, load_tokenizer
from fieldcraft.types import UserError

UNKNOWN_FORMAT_ADVICE = "dialect=hermes writes them as JSON in <tool_call> tags"
TOKENIZER_ADVICE = "choose a model whose tokenizer preserves every text, like byte-level ones"
TEXT_TAG_DIALECTS = (
    "autocoa",
    "torl",
)  # single-tool dialects for models without tool support


def choose_dialect(recipe: Recipe, folder: Path | None = None) -> DialectChoice:
    """Return the dialect of a recipe, and the reason if the recipe names none.

    The choice is `hermes` if the chat template renders calls in its format, `auto` if it renders
    them in another known one, otherwise, or if the model has no template or is created by the run,
    a dialect of text tags. If none of these supports the recipe's tools or the folds of its budget,
    it is `hermes` with a built-in tool prompt. A recipe that names `auto` gets it for both. For a
    template with calls in an unknown format, the reason names the dialect that has JSON instead.

    Args:
        recipe: settings of the run.
        folder: folder of the model, by default the one that the recipe names.

    Raises UserError for a tokenizer that cannot be read, and for a model with a program in place of
    a chat template.
    """
    if recipe.dialect not in (None, AUTO_DIALECT):
        return DialectChoice(name=str(recipe.dialect))
    folder = folder or recipe.model
    if folder is None:
        return _choose_for_tools(recipe, "the run creates the model, which learns one from scratch")
    tokenizer = load_tokenizer(folder)
    require_template_for_program(tokenizer, folder)
    if tokenizer.chat_template is None:
        return _choose_for_tools(recipe, f"{folder} has no chat template")
    followed = (HermesDialect.name, AUTO_DIALECT)
    for name in followed if recipe.environment.calls_tools else followed[:1]:
        if call_format := _find_template_format(name, recipe, tokenizer, folder):
            name = recipe.dialect or name
            form = "" if name == HermesDialect.name else f" in the format {call_format}"
            return DialectChoice(
                name=name, why=f"the chat template of {folder} writes tool calls{form}"
            )
    if not renders_calls(tokenizer, recipe.chat_template_kwargs):
        return _choose_for_tools(recipe, f"the chat template of {folder} writes no tool calls")
    choice = _choose_for_tools(
        recipe, f"the chat template of {folder} writes tool calls in an unknown format"
    )
    if choice.name == HermesDialect.name:
        return choice
    return DialectChoice(name=choice.name, why=f"{choice.why} ({UNKNOWN_FORMAT_ADVICE})")


def _choose_for_tools(recipe: Recipe, reason: str) -> DialectChoice:
    """Return the dialect of a model whose template has no tool calls."""
    # The tools of a server are unknown until it is queried.
    called = {name for tool in recipe.tools for name in tool.all_names or {tool.name}}
    if recipe.environment.is_external and recipe.environment.calls_tools:
        called = {"the tools of each question"}
    for name in TEXT_TAG_DIALECTS:
        dialect = resolve_dialect(name)
        can_fold = recipe.budget.fold is None or dialect.default_summary_instruction is not None
        if can_fold and called <= {*(dialect.callable_tools or called)}:
            return DialectChoice(name=name, why=reason)
    limitation = "can be folded" if called <= {"python"} else f"calls {', '.join(sorted(called))}"
    return DialectChoice(
        name=HermesDialect.name, why=f"{reason}, and no dialect of text tags {limitation}"
    )


def _find_template_format(name: str, recipe: Recipe, tokenizer: Any, folder: Path) -> str:
    """Return the format in which the model's chat template renders calls, "" if the dialect does
    not know it or its extension is not installed; errors of the tokenizer are reported when the
    dialect is instantiated."""
    try:
        return _make_dialect(name, recipe, tokenizer, folder).template_format
    except UserError:
        return ""


def with_dialect(recipe: Recipe, folder: Path | None = None) -> Recipe:
    """Return the recipe with the name of its dialect. Raises UserError like `choose_dialect`."""
    return recipe.model_copy(update={"dialect": choose_dialect(recipe, folder).name})


def load_dialect(recipe: Recipe, folder: Path) -> BaseDialect:
    """Return the dialect of a recipe, bound to the tokenizer of the model in a folder.

    Raises UserError for a tokenizer that cannot be read, has more tokens than the model, is
    incompatible with the dialect, or changes texts.
    """
    tokenizer = load_tokenizer(folder)
    _require_known_tokens(tokenizer, folder)
    dialect = _make_dialect(choose_dialect(recipe, folder).name, recipe, tokenizer, folder)
    # Most external environments use only the chat template, which is also encoded in parts.
    if (
        errors := check_round_trip(dialect)
        if recipe.environment.calls_tools
        else check_part_encoding(dialect.tokenizer)
    ):
        raise UserError(
            f"{errors[0][:-1]}, so the dialect '{dialect.name}' cannot be used with {folder}:"
            f" {TOKENIZER_ADVICE}."
        )
    return dialect


def announce_dialect(recipe: Recipe, folder: Path) -> BaseDialect:
    """Return the dialect like `load_dialect`, and print an automatic choice on standard error,
    because a server may respond on standard output. Raises UserError like `load_dialect`."""
    choice = choose_dialect(recipe, folder)
    dialect = load_dialect(recipe.model_copy(update={"dialect": choice.name}), folder)
    if choice.why and choice.name != recipe.dialect:  # `auto` of a recorded choice is no news
        print_line(choice.message, file=sys.stderr)
    return dialect


def _make_dialect(name: str, recipe: Recipe, tokenizer: Any, folder: Path) -> BaseDialect:
    """Instantiate a dialect with the settings of a recipe and of a model folder."""
    return make_dialect(
        name,
        tokenizer,
        recipe.instruction,
        chat_template_kwargs=recipe.chat_template_kwargs,
        system_prompt=recipe.system_prompt,
        summary_instruction=recipe.budget.fold.prompt if recipe.budget.fold is not None else None,
        eos_ids=read_eos_token_ids(folder),
        prompt_date=recipe.date,
    )


def require_usable_tokenizer(folder: Path) -> None:
    """Raise UserError for a model without agent settings if its tokenizer is incompatible with
    every dialect, see `load_dialect`."""
    tokenizer = load_tokenizer(folder)
    _require_known_tokens(tokenizer, folder)
    if errors := check_part_encoding(tokenizer):
        raise UserError(
            f"{errors[0][:-1]}, so no dialect can be used with {folder}: {TOKENIZER_ADVICE}."
        )


def _require_known_tokens(tokenizer: Any, folder: Path) -> None:
    """Raise UserError for a tokenizer with tokens that the model does not have."""
    tokens, known = len(tokenizer), load_config(folder).get_text_config().vocab_size
    if tokens > known:
        raise UserError(
            f"the tokenizer of {folder} has {tokens} tokens and the model only {known}: use the"
            " tokenizer that belongs to the model."
        )
