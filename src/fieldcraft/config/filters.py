"""Filters of a recipe: names in the order of application, with their settings."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from fieldcraft.config.names import BUILTIN_COMPONENTS, ComponentKind

# Built-in filters that check only the question of a demonstration, and not its steps.
QUESTION_FILTERS = ("tests", "proofs", "near_duplicates", "contaminated")


def _fill_empty_settings(filters: Any) -> Any:
    """Return the filters with {} for filters without settings: in YAML, a name and a colon without
    a value mean null."""
    if not isinstance(filters, dict):
        return filters
    return {name: {} if own is None else own for name, own in filters.items()}


Filters = Annotated[dict[str, dict[str, Any]], BeforeValidator(_fill_empty_settings)]


def _validate_question_filters(filters: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    for name in filters:
        if name in BUILTIN_COMPONENTS[ComponentKind.FILTER] and name not in QUESTION_FILTERS:
            raise ValueError(
                f"the filter '{name}' needs an answered question, but questions are filtered here"
                f" before they are answered: use {', '.join(QUESTION_FILTERS)} or a custom filter"
            )
    return filters


QuestionFilters = Annotated[Filters, AfterValidator(_validate_question_filters)]
