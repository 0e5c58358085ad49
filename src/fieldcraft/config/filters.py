"""Filters as a recipe writes them: names in the order of their use, each with its settings."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from fieldcraft.config.names import BUILT_IN, Kind, require

# Those of the built-in filters that look at the question of a chain, and not at its steps.
QUESTION_FILTERS = ("tests", "proofs", "near_duplicates", "contaminated")


def _without_settings(filters: Any) -> Any:
    """Return the filters with {} for those without settings: in YAML such a filter is a name and a
    colon, which stands for null."""
    if not isinstance(filters, dict):
        return filters
    return {name: {} if own is None else own for name, own in filters.items()}


def _are_filters(filters: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    for name in filters:
        require(Kind.FILTER, name)
    return filters


Filters = Annotated[
    dict[str, dict[str, Any]],
    BeforeValidator(_without_settings),
    AfterValidator(_are_filters),
]


def _look_at_questions(filters: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    for name in filters:
        if name in BUILT_IN[Kind.FILTER] and name not in QUESTION_FILTERS:
            raise ValueError(
                f"the filter '{name}' looks at how a question was answered, and here none is: use"
                f" {', '.join(QUESTION_FILTERS)} or one of your own"
            )
    return filters


QuestionFilters = Annotated[Filters, AfterValidator(_look_at_questions)]
